"""A `memwal` for scripts whose every call is served by one process: starting Python and Lance is most of what a call costs.

Each call brings its arguments, its directory and its standard streams (as file descriptors), and gets the exit status of
`lance_memwal.__main__.main`. What the start of a real process does is tested in `tests/cli`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
            [sys.executable, "-m", "tests.kit.warm_command", str(listener.fileno())],
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
