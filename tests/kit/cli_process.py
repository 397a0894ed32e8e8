"""Runs `memwal` in a real process, as the installed command does: with the current directory not on the path.

`run` and `on_a_terminal` take a process of the harness that has imported everything already, which saves most of a second
for each command. Where a command needs an environment or rights of its own, and behind `COMMAND`, the interpreter starts
anew.
"""

import atexit
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import lance_memwal.__main__
from tests.harness import processes

COMMAND = [sys.executable, "-P", "-m", "lance_memwal"]
_GIVE_UP_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1  # root ignores permissions unless this is taken from it; others have none to lose
if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
    sys.exit("this process may not give up its right to ignore permissions")
os.execv(sys.argv[1], sys.argv[1:])
"""
_SECONDS = 100
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(
    *arguments: object, status: int = 0, environment: dict[str, str] | None = None, may_ignore_permissions: bool = True
) -> subprocess.CompletedProcess[str]:
    if environment is None and may_ignore_permissions:
        done = _captured(arguments)
    else:
        done = subprocess.run(
            [*([] if may_ignore_permissions else [sys.executable, "-c", _GIVE_UP_RIGHTS]), *COMMAND, *map(str, arguments)],
            capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL,
            env=os.environ | (environment or {}),
        )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done


def answer(*arguments: object, status: int = 0) -> dict:
    return json.loads(run(*arguments, "--json", status=status).stdout)


def rows(*arguments: object, status: int = 0) -> list[dict]:
    return [json.loads(line) for line in run(*arguments, "--json", status=status).stdout.splitlines()]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("memwal: ")
    assert "Traceback" not in done.stderr
    return done.stderr


def on_a_terminal(*arguments: object, columns: int = 80) -> str:
    """What a person sees on a terminal of this width, progress and colours included but without their codes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = _forked(arguments, [os.ttyname(theirs)] * 3, {**environment, "TERM": "xterm"})
    child.receive(_SECONDS)  # it has the terminal open
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        seen += data
    os.close(ours)
    assert child.wait(_SECONDS) == 0, seen.decode()
    return _STYLE.sub("", seen.decode()).replace("\r\n", "\n")


class Staying:
    """A command that runs until it is interrupted."""

    def __init__(self, *arguments: object) -> None:
        self._folder = tempfile.TemporaryDirectory()
        out, self._err = Path(self._folder.name, "out"), Path(self._folder.name, "err")
        os.mkfifo(out)
        self._child = _forked(arguments, [os.devnull, str(out), str(self._err)], os.environ)
        self._child.receive(_SECONDS)  # it has the pipe open
        self._out = out.open(encoding="utf-8")

    def line(self) -> str:
        return self._out.readline()

    def end(self) -> str:
        """Interrupt it; the rest of its output, and all that it wrote to standard error."""
        os.kill(self._child.pid, signal.SIGINT)
        with self._out, self._folder:
            self._child.wait(_SECONDS)
            return self._out.read() + self._err.read_text("utf-8")


def _captured(arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        status = _forked(arguments, [os.devnull, str(out), str(err)], os.environ).wait(_SECONDS)
        return subprocess.CompletedProcess(list(arguments), status, out.read_text("utf-8"), err.read_text("utf-8"))


def _forked(arguments: Sequence[object], streams: Sequence[str], environment: Mapping[str, str]) -> processes.Child:
    """A command whose standard input, output and errors are these files."""
    return processes.start(_command, [str(a) for a in arguments], os.getcwd(), dict(environment), list(streams))


def _command(
    arguments: list[str], folder: str, environment: dict[str, str], streams: list[str], pipe: Connection
) -> None:
    for descriptor, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    pipe.send(("open",))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = os.fdopen(0, encoding="utf-8")  # a process of multiprocessing has put another one in its place
    try:
        sys.exit(lance_memwal.__main__.main(arguments))
    finally:
        atexit._run_exitfuncs()  # an interpreter does this at its end, a process of multiprocessing does not


# A `memwal` for scripts whose every call is served by one process: starting Python and Lance is most of what a call
# costs.
#
# Each call brings its arguments, its directory and its standard streams (as file descriptors), and gets the exit
# status of `lance_memwal.__main__.main`. What the start of a real process does is tested in `tests/cli`.

_CALL = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as service:
    service.connect(sys.argv[1])
    socket.send_fds(service, [json.dumps([os.getcwd(), sys.argv[2:]]).encode()], [0, 1, 2])
    sys.exit(int(service.recv(16) or 70))
"""


@contextmanager
def warm_command(folder: Path) -> Iterator[Path]:
    """A directory with the command `memwal`, for as long as the block lasts."""
    place, call, command = folder / "service", folder / "call.py", folder / "memwal"
    call.write_text(_CALL)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{call}" "{place}" "$@"\n')
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.cli_process", str(listener.fileno())],
            pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
        try:
            yield folder
        finally:
            server.kill()
            server.wait()


def serve(listener: socket.socket) -> None:
    """Answer calls, one after the other, until this process is ended, or its parent is gone."""
    from lance_memwal.__main__ import main

    parent = os.getppid()
    listener.settimeout(5)
    while os.getppid() == parent:
        try:
            call, _ = listener.accept()
        except TimeoutError:
            continue
        with call:
            call.settimeout(None)
            message, streams, _, _ = socket.recv_fds(call, 1 << 16, 3)
            directory, arguments = json.loads(message)
            os.chdir(directory)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            status = main(arguments)
            with suppress(BrokenPipeError):
                sys.stdout.flush()
            for number in range(3):  # whoever reads what this call wrote sees its end
                with open(os.devnull, "r+b") as nothing:
                    os.dup2(nothing.fileno(), number)
            call.sendall(str(status).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
