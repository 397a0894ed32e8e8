"""How a process that may die any moment says what it does.

Owns `Voice` and `tell_failure`. Invariant: what several threads say arrives in the order in which it happened.
"""

from __future__ import annotations

import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

__all__ = ["Voice", "tell_failure"]


class Voice:
    """Sends messages of several threads in the order in which things happened."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def say(self, tag: str, *values: Any) -> None:
        """Send one message."""
        with self._lock:
            self._pipe.send((tag, *values))


def tell_failure(voice: Voice) -> NoReturn:
    """Tell the error of now, and end."""
    with suppress(OSError):  # nobody listens any more
        voice.say("failed", traceback.format_exc())
    raise SystemExit(1) from None
