"""The kinds of lives, and which number is which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.log_lives import LogLife
from tests.simulation.once_lives import OnceLife
from tests.simulation.writer_lives import WriterLife

__all__ = ["KINDS", "kind_of"]

KINDS: dict[str, Callable[..., Any]] = {"log": LogLife, "once": OnceLife, "writer": WriterLife}
_TURNS = ("log", "log", "log", "once", "once", "writer")


def kind_of(seed: int) -> str:
    """The kind of the life with this number."""
    return _TURNS[seed % len(_TURNS)]
