"""The kinds of lives, which number is which, and the command that lives one again.

Owns `KINDS`, `LANCE_KINDS`, `kind_of`, `life_of` and `command`. A life is a function of its kind, its number, and whether it is
one with Lance. With Lance all is the same each time but the names that Lance draws for its files.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.simulation.log_lives import LogLife
from tests.simulation.writer_lives import OnceLife, WriterLife

KINDS: dict[str, Callable[..., Any]] = {"log": LogLife, "once": OnceLife, "writer": WriterLife}
LANCE_KINDS = ("once", "writer")
_TURNS = ("log", "log", "log", "once", "once", "writer")
_TURNS_WITH_LANCE = ("once", "once", "writer")


def kind_of(seed: int, *, lance: bool = False) -> str:
    turns = _TURNS_WITH_LANCE if lance else _TURNS
    return turns[seed % len(turns)]


@contextmanager
def life_of(kind: str, seed: int, *, lance: bool = False, keep_trace: bool = False) -> Iterator[Any]:
    """A life that can be run; with `lance` one with Lance itself, in a directory that goes with it."""
    if not lance:
        yield KINDS[kind](seed, keep_trace=keep_trace)
        return
    with tempfile.TemporaryDirectory(prefix="memwal-simulation-") as directory:
        yield KINDS[kind](seed, keep_trace=keep_trace, directory=Path(directory, "table"))


def command(kind: str, seed: int, *, lance: bool = False) -> str:
    """What lives this life again, call by call."""
    return f"python -m tests.simulation --kind {kind} --seed {seed}{' --lance' if lance else ''} --trace"
