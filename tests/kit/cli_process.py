"""Runs `memwal` in a real process, as the installed command does: with the current directory not on the path."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

COMMAND = [sys.executable, "-P", "-m", "lance_memwal"]
_GIVE_UP_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1  # root ignores permissions unless this is taken from it; others have none to lose
if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
    sys.exit("this process may not give up its right to ignore permissions")
os.execv(sys.argv[1], sys.argv[1:])
"""
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(
    *arguments: object, status: int = 0, environment: dict[str, str] | None = None, may_ignore_permissions: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*([] if may_ignore_permissions else [sys.executable, "-c", _GIVE_UP_RIGHTS]), *COMMAND, *map(str, arguments)],
        capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL,
        env=None if environment is None else {**os.environ, **environment},
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
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm"},
    ) as process:
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
    assert process.returncode == 0, seen.decode()
    return _STYLE.sub("", seen.decode()).replace("\r\n", "\n")
