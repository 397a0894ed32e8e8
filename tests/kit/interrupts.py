"""KeyboardInterrupt at any line of a call, one after the other."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import lance_memwal

WRITE_PATH = tuple(
    f"lance_memwal/{part}" for part in ("write/", "memtable/memtable.py", "log/wal.py", "log/tail.py", "store/local.py")
)
for _part in WRITE_PATH:  # what is not there would never be interrupted
    assert (Path(lance_memwal.__file__).parents[1] / _part).exists(), _part


class Interrupter:
    """Raises KeyboardInterrupt at the `at`-th traced line of a call, or counts the lines if there are fewer."""

    def __init__(self, at: int, traced: tuple[str, ...] = WRITE_PATH) -> None:
        self.at = at
        self.traced = traced
        self.lines = 0
        self.where = ""

    def run(self, call: Callable[[], Any]) -> bool:
        """Whether `call` was interrupted."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        called_by_us = frame.f_back is not None and "/lance_memwal/" in frame.f_back.f_code.co_filename
        ours = called_by_us or "/lance_memwal/" in frame.f_code.co_filename  # not the locks of the test itself
        return self._line if ours and any(part in frame.f_code.co_filename for part in self.traced) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        # A `with` line is traced again while its block is left, before the lock is released: no signal is handled there.
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
            "with "
        ):
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line
