"""How a process that may die any moment says what it does.

Owns `Voice`. Invariant: what several threads say arrives in the order in which it happened.
"""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Voice"]


class Voice:
    """Sends messages of several threads in the order in which things happened."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def say(self, tag: str, *values: Any) -> None:
        """Send one message."""
        with self._lock:
            self._pipe.send((tag, *values))
