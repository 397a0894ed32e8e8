"""The entry of the command line: `memwal`, and `python -m lance_memwal`.

Owns what must work before anything is loaded. Invariants:

1. `--version` loads nothing.
2. Without the libraries of the command line, one line says what to install.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

import lance_memwal

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"memwal {lance_memwal.__version__}")
        return 0
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        print(f"memwal: the command line needs {missing[0]}: pip install 'lance-memwal[cli]'", file=sys.stderr)
        return 1
    from lance_memwal.cli import main as run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
