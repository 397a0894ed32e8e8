"""Run the interop tests beside the newest pylance and LanceDB, in an environment of their own.

`make prove-versions` creates `.venv-versions` from pyproject.toml and constraints.txt, then lets pylance and LanceDB move
on to the newest releases there are, or to those that are named: `make prove-versions ARGS="pylance==15.0.0"`. The versions
under test are printed first; a system that needs another pyarrow brings it along. `make prove-versions ARGS=floors` goes the
other way: the oldest release of every dependency that pyproject.toml allows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv-versions"
PYTHON = PLACE / "bin" / "python"
NEWEST = ("pylance", "lancedb")
TESTS = (
    "tests/interop",
    "tests/golden",
    "tests/format",
    "tests/row_filter",
    "tests/schema",
    "tests/table",
    "tests/memtable",
    "tests/wal",
)


def floors() -> list[str]:
    """The oldest releases that we say we work with."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [re.sub(r">=([0-9.]+).*", r"==\1", requirement) for requirement in required]


def python(*arguments: str) -> int:
    """The exit status of a call of the environment's interpreter."""
    return subprocess.run([PYTHON, *arguments], check=False, cwd=ROOT).returncode  # noqa: S603 (our own interpreter)


def main(wanted: list[str]) -> int:
    """The exit status of the tests with the `wanted` releases."""
    if not PYTHON.exists():
        venv.create(PLACE, with_pip=True)
    install = ("-m", "pip", "install", "-q")
    versions = (
        "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('pylance', 'lancedb', 'pyarrow')))"
    )
    return (
        python(*install, "-c", "constraints.txt", "-e", ".[dev]")
        or python(*install, "--upgrade", *(floors() if wanted == ["floors"] else wanted or NEWEST))
        or python("-c", versions)
        or python("-m", "pytest", "-n", "2", *TESTS)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
