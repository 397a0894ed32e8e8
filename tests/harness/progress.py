"""A line now and then, from programs that run for hours.

Owns `Progress`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Progress"]

_EVERY_SECONDS: Final = 30.0


class Progress:
    """Prints lines, not too often."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def tell(self, line: Callable[[], str], *, at_once: bool = False) -> None:
        """Print a line if it is time for one, or `at_once`."""
        if at_once or time.monotonic() - self._told > _EVERY_SECONDS:
            self._told = time.monotonic()
            print(line(), flush=True)
