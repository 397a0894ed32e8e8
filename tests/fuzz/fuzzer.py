"""Feed a decoder hostile bytes in a child process and fail if it does anything but answer or refuse.

Owns `fuzz_decoder` and the child that it starts. A decoder may return, or raise `CorruptDataError` or
`UnsupportedFormatError`; one that is asked by a caller also `InvalidInputError`. Everything else is a failure: another
exception, a crash of the process, more memory than the limit, more time for one input than the limit. Invariants:

1. A failure names the decoder, the seed and the number of the input, also after a crash: the child notes the number
   in a mapped file before each input.
2. The child's memory limit is what it uses after its imports plus `HEADROOM_BYTES`.

To fuzz one more decoder: add it to `decoders.py`. To see the input of a failure: `mutate(seed, number, corpus)`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutations import every_cut_and_flip, mutate

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError

HEADROOM_BYTES = 1 << 30
SECONDS_PER_INPUT = 20
SEED = int(os.environ.get("LANCE_MEMWAL_FUZZ_SEED", "20240614"))


class FuzzError(AssertionError):
    """A decoder did what it must not; `number` is that of the input."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def fuzz_decoder(
    name: str,
    corpus: Sequence[bytes],
    runs: int,
    *,
    is_asked: bool = False,
    seed: int = SEED,
    first: int = 0,
    headroom_bytes: int = HEADROOM_BYTES,
) -> dict[str, int]:
    """Run `runs` mutated inputs through the decoder `name` ("module:function"), or raise an `AssertionError`.

    The inputs are numbered from `first` on. `runs=0` means every cut and every single-bit flip of the corpus instead.
    Returns how many inputs were taken and how many refused.
    """
    assert corpus, f"no corpus for {name}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number, data in enumerate(corpus):
            (folder / f"{number:04d}.corpus").write_bytes(data)
        (folder / "progress").write_bytes(bytes(8))
        job = {"name": name, "runs": runs, "seed": seed, "first": first, "is_asked": is_asked}
        job |= {"headroom": headroom_bytes, "seconds": SECONDS_PER_INPUT}
        (folder / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-X", "faulthandler", __file__, scratch]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode == 0:
            result: dict[str, int] = json.loads(child.stdout)
            return result
        at = struct.unpack("<Q", (folder / "progress").read_bytes())[0]
    how = f"signal {signal.Signals(-child.returncode).name}" if child.returncode < 0 else f"status {child.returncode}"
    raise FuzzError(f"{name}: seed {seed}, input {at}: child ended with {how}\n{child.stderr[-3_000:]}", at)


def _inputs(job: dict[str, Any], corpus: Sequence[bytes]) -> Iterator[bytes]:
    if job["runs"] == 0:
        return every_cut_and_flip(corpus)
    return (mutate(job["seed"], number, corpus) for number in range(job["first"], job["first"] + job["runs"]))


def _limit_memory(headroom_bytes: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + headroom_bytes, used + headroom_bytes))


def _out_of_time(*_: object) -> None:
    raise TimeoutError("one input took too long")


def _child(folder: Path) -> None:
    logging.disable()  # a decoder may warn of every input
    job = json.loads((folder / "job.json").read_text())
    corpus = [file.read_bytes() for file in sorted(folder.glob("*.corpus"))]
    module, function = job["name"].split(":")
    decode: Callable[[bytes], object] = getattr(importlib.import_module(module), function)
    for data in corpus:
        decode(data)  # imports what the decoder imports late, and proves that the corpus is honest
    _limit_memory(job["headroom"])
    signal.signal(signal.SIGALRM, _out_of_time)
    refusals = (CorruptDataError, UnsupportedFormatError, *((InvalidInputError,) if job["is_asked"] else ()))
    counts = {"taken": 0, "refused": 0}
    with (folder / "progress").open("r+b") as file, mmap.mmap(file.fileno(), 8) as progress:
        for number, data in zip(itertools.count(job["first"]), _inputs(job, corpus), strict=False):
            progress[:] = struct.pack("<Q", number)
            signal.alarm(job["seconds"])
            try:
                decode(data)
                counts["taken"] += 1
            except refusals:
                counts["refused"] += 1
            except BaseException:
                signal.alarm(0)
                traceback.print_exc()
                print(f"input: {data[:500].hex()}{'...' if len(data) > 500 else ''}", file=sys.stderr)
                sys.exit(1)
        signal.alarm(0)
    print(json.dumps(counts))


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
