"""Named points of the order of effects, for crash and fencing tests.

Owns `reach`: production code calls it where a crash would be interesting; it does nothing unless a test installed a
handler. Invariant: a handler never changes what the engine does, it only stops, kills or delays the process.
"""

from __future__ import annotations

from collections.abc import Callable

_handler: Callable[[str], None] | None = None


def install(handler: Callable[[str], None] | None) -> None:
    """Call `handler` with the name of every point reached; None removes it."""
    global _handler
    _handler = handler


def reach(point: str) -> None:
    """Tell the handler, if there is one, that the engine is at `point`."""
    if _handler is not None:
        _handler(point)
