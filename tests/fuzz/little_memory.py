"""The one home of the memory limit below which hostile bytes are read, and of how much was had at most.

Owns `limit_memory` and `most_mib`. It stands by itself, so that the child of the fuzzer finds it as a script does.
"""

import resource
from pathlib import Path


def limit_memory(headroom_bytes: int) -> None:
    """Let this process, from now on, have no more than what it has mapped and `headroom_bytes`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + headroom_bytes, used + headroom_bytes))


def most_mib() -> int:
    """The most memory that this process had at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
