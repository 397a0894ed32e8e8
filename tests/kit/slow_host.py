"""One of the two hosts of the test cluster is slow: tasks find out whether they are there."""

from __future__ import annotations

from pathlib import Path

SLOW_HOST = "127.0.0.2"


def on_slow_host() -> bool:
    """Whether the executor above this process belongs to the slow host."""
    number = "self"
    for _ in range(4):
        status = Path(f"/proc/{number}/status").read_text()
        number = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
        if f"--hostname\0{SLOW_HOST}" in Path(f"/proc/{number}/cmdline").read_text():
            return True
    return False
