"""KeyboardInterrupt at any place of a call, one after the other."""

import dis
import linecache
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
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
        return self._line if self._is_traced(frame) else None

    def _is_traced(self, frame: FrameType) -> bool:
        called_by_us = frame.f_back is not None and "/lance_memwal/" in frame.f_back.f_code.co_filename
        ours = called_by_us or "/lance_memwal/" in frame.f_code.co_filename  # not the locks of the test itself
        return ours and any(part in frame.f_code.co_filename for part in self.traced)

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        # A `with` line is traced again while its block is left, before the lock is released: no signal is handled there.
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
            "with "
        ):
            self._pass(frame)
        return self._line

    def _pass(self, frame: FrameType) -> None:
        self.lines += 1
        if self.lines == self.at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise KeyboardInterrupt


class SignalInterrupter(Interrupter):
    """The same, where CPython handles a signal: as a function begins, after a call of native code, and as a loop goes round.
    So it comes between `lock.acquire()` and what follows in the same line, too.

    It is raised at the step after that. Where another `except` is in force there, the place is left out.
    """

    def __init__(self, at: int, *traced: str) -> None:
        super().__init__(at, tuple(f"lance_memwal/{part}" for part in traced))
        self._last: dict[FrameType, tuple[str, int | None]] = {}

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_back in self._last and self._last[frame.f_back][0].startswith("CALL"):
            self._last[frame.f_back] = ("to Python", None)  # no signal is handled as it returns
        if not self._is_traced(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self._last[frame] = ("RESUME", _steps(frame.f_code)[max(frame.f_lasti, 0)][1])
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            (last, handler), here = self._last[frame], _steps(frame.f_code)[frame.f_lasti]
            self._last[frame] = here
            if (last == "RESUME" or last.startswith("CALL") or "JUMP_BACKWARD" in last) and handler == here[1]:
                self._pass(frame)
        return self._opcode


def interrupted_everywhere(call: Callable[[], Any], check: Callable[[str], Any], *traced: str) -> int:
    """Interrupt `call` wherever a signal is handled in `traced`, one place after the other, and `check` what is left each
    time; returns how many places there are."""
    at = 1
    while (interrupter := SignalInterrupter(at, *traced)).run(call):
        check(interrupter.where)
        at += 1
    return interrupter.lines


@cache
def _steps(code: CodeType) -> dict[int, tuple[str, int | None]]:
    """The name of every step, and the `except` that is in force there."""
    read = dis.Bytecode(code)
    return {
        step.offset: (
            step.opname,
            next((each.target for each in read.exception_entries if each.start <= step.offset < each.end), None),
        )
        for step in read
    }
