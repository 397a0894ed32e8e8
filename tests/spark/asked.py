"""A driver in a process of its own that answers questions, so that several tests share one session.

A question is a line of JSON, a name and arguments, and so is its answer. They go through a socket of their own, since
the JVM writes to the standard output.
"""

from __future__ import annotations

import contextlib
import json
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from killing import Driver

Questions = Mapping[str, Callable[..., Any]]


class Asked:
    def __init__(self, arguments: list[str], log: Path, *, script: str) -> None:
        here, there = socket.socketpair()
        with there:
            self.driver = Driver([str(there.fileno()), *arguments], log, script=script, keep=[there.fileno()])
        self._socket = here
        self._file = here.makefile("rw", encoding="utf-8")
        self._log = log

    def ask(self, question: str, *arguments: Any, seconds: float = 600) -> Any:
        """What the driver answers; its traceback if it failed."""
        self._socket.settimeout(seconds)
        line = ""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone: its log says why
            self._file.write(json.dumps([question, *arguments]) + "\n")
            self._file.flush()
            line = self._file.readline()
        assert line, f"the driver is gone: {self._log.read_text()[-6000:]}"
        answer = json.loads(line)
        assert "failed" not in answer, f"{answer['failed']}\n{self._log.read_text()[-1000:]}"
        return answer["answer"]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # what was not sent to a driver that is gone
            self._file.close()
        self._socket.close()
        self.driver.kill_all()


def answer(number: str, questions: Questions) -> None:
    """The side of the driver: answer until nobody asks any more."""
    with socket.socket(fileno=int(number)) as given, given.makefile("rw", encoding="utf-8") as file:
        for line in file:
            name, *arguments = json.loads(line)
            try:
                found = {"answer": questions[name](*arguments)}
            except Exception:
                found = {"failed": traceback.format_exc()}
            file.write(json.dumps(found) + "\n")
            file.flush()
