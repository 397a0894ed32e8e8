"""Run the tests of the rooms that a change touches: the part of `make check` after lint.

A change is every file that differs from the merge base with `main`, committed or not; on `main` itself, every uncommitted
file, or the files of the last commit. `make test` runs everything and stays what CI runs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The folders of tests/ that test a room. A folder that is named like its room needs no line.
FOLDERS = {
    "": ["config", "table/test_create_table.py", "writer/test_put.py"],
    "process": ["process", "telemetry"],
    "rows": ["schema", "row_filter", "format"],
    "lance": ["identity", "schema"],
    "log": ["wal", "manifest", "fencing"],
    "memtable": ["memtable", "index"],
    "sstable": ["flush", "maintained"],
    "write": ["writer"],
    "read": ["scan", "search", "rww"],
    "upkeep": ["upkeep", "gc", "verify"],
    "testing": ["store"],
}
# Test files that take longer than a developer waits: `make test` runs them.
SLOW: list[str] = []


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout.split("\n")[:-1]


def changed_files() -> list[str]:
    """Paths of the change, relative to the root; files that were deleted are included."""
    on_main = _git("rev-parse", "--abbrev-ref", "HEAD") == ["main"]
    base = "HEAD" if on_main else _git("merge-base", "HEAD", "main")[0]
    changed = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    return changed or _git("diff", "--name-only", "HEAD~1")


def tests_of(path: str) -> list[str]:
    """Folders and files below tests/ that test the file at `path`."""
    parts = Path(path).parts
    if path.startswith("src/lance_memwal/"):
        room = parts[2] if len(parts) > 3 else ""
        return FOLDERS.get(room, [room])
    if parts[0] == "tests" and len(parts) > 2:
        is_test = parts[-1].startswith("test_") and (ROOT / path).exists()
        return ["/".join(parts[1:])] if is_test else [] if parts[1] in ("kit", "harness") else [parts[1]]
    if parts[0] in ("docs", "rfcs") or path.endswith(".md"):
        return ["docs", "project/test_documentation.py"]
    return {"benchmarks": ["project/test_bench_goals.py"], "examples": ["examples"]}.get(parts[0], [])


def main() -> int:
    """Select and run; the exit status is pytest's."""
    selected = sorted({test for path in changed_files() for test in tests_of(path)} | {"project/test_house.py"})
    existing = [f"tests/{test}" for test in selected if (ROOT / "tests" / test).exists()]
    slow = [argument for file in SLOW for argument in ("--ignore", f"tests/{file}")]
    print("make check runs:", *existing, flush=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", *slow, *existing, *sys.argv[1:]]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603
    print(f"make check took {time.monotonic() - started:.0f} s for its tests; `make test` runs all")
    return status


if __name__ == "__main__":
    sys.exit(main())
