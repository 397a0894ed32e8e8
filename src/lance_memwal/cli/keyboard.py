"""Keys that a person presses while a command shows something.

Owns `Keyboard`. Invariant: the terminal is as it was before when it is left, however it is left.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from typing import Any

from lance_memwal.clock import SYSTEM_CLOCK


class Keyboard:
    """The keys of the terminal, one by one, without Return; no keys where standard input is no terminal."""

    def __init__(self, *, is_used: bool) -> None:
        self._is_used = is_used and sys.stdin.isatty()
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        if self._is_used:
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_used:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def is_pressed(self, key: str, within_seconds: float) -> bool:
        """Whether `key` is pressed within this time; returns when it is, or when the time is over."""
        if not self._is_used:
            SYSTEM_CLOCK.sleep(within_seconds)
            return False
        end = SYSTEM_CLOCK.monotonic() + within_seconds
        while (left := end - SYSTEM_CLOCK.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                pressed = os.read(sys.stdin.fileno(), 64)
                if not pressed or key.encode() in pressed:  # nothing: the terminal is gone
                    return True
        return False
