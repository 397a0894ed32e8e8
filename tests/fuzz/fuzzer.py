"""Feed a decoder hostile bytes in a child process and fail if it does anything but answer or refuse.

Owns `fuzz_decoder` and the child that it starts. A decoder may return, or raise `CorruptDataError` or
`UnsupportedFormatError`; one that is asked by a caller also `InvalidInputError`. Everything else is a failure: another
exception, a crash of the process, more memory than the limit, more time for one input than the limit. Invariants:

1. A failure names the decoder, the seed and the number of the input, also after a crash: the child notes the number
   in a mapped file before each input.
2. The child's memory limit is what it uses after its imports plus `HEADROOM_BYTES`.
3. Time is the parent's: it looks at the number of the input, and aborts a child that stays at one, whatever holds it up.
   A handler of signals in the child would wait for native code to return.

To fuzz one more decoder: add it to `decoders.py`. To see the input of a failure: `mutate(seed, number, corpus)`.
"""

import importlib
import itertools
import json
import logging
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from little_memory import limit_memory
from mutations import every_cut_and_flip, mutate

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError

HEADROOM_BYTES = 1 << 30
SECONDS_PER_INPUT = 20
_START_SECONDS = 120  # for imports, and the corpus as it is
_LOOK_SECONDS = 0.25
_NUMBER = struct.Struct("<Q")
_NOT_BEGUN = (1 << 64) - 1
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
        progress = folder / "progress"
        progress.write_bytes(_NUMBER.pack(_NOT_BEGUN))
        job = {"name": name, "runs": runs, "seed": seed, "first": first, "is_asked": is_asked}
        (folder / "job.json").write_text(json.dumps(job | {"headroom": headroom_bytes}))
        command = [sys.executable, "-X", "faulthandler", __file__, scratch]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            told, errors, how = _ended(child, progress)
        if not how:
            result: dict[str, int] = json.loads(told)
            return result
        at = _number(progress)
    at = first if at == _NOT_BEGUN else at
    raise FuzzError(f"{name}: seed {seed}, input {at}: child ended with {how}\n{errors[-3_000:]}", at)


def _ended(child: subprocess.Popen[str], progress: Path) -> tuple[str, str, str]:
    """What the child printed until it ended, and how it ended if not well; one that stays at an input is aborted, whereupon
    it shows where it is."""
    at, since, late = _NOT_BEGUN, time.monotonic(), ""
    while True:
        try:
            told, errors = child.communicate(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            now = _number(progress)
            at, since = (at, since) if now == at else (now, time.monotonic())
            limit = _START_SECONDS if at == _NOT_BEGUN else SECONDS_PER_INPUT
            if not late and time.monotonic() > since + limit:
                late = f"an input that took longer than {limit} seconds, "
                child.send_signal(signal.SIGABRT)
            continue
        except BaseException:
            child.kill()
            raise
        status = child.returncode
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return told, errors, late + how if status else ""


def _number(progress: Path) -> int:
    return int(_NUMBER.unpack(progress.read_bytes())[0])


def _inputs(job: dict[str, Any], corpus: Sequence[bytes]) -> Iterator[bytes]:
    if job["runs"] == 0:
        return every_cut_and_flip(corpus)
    return (mutate(job["seed"], number, corpus) for number in range(job["first"], job["first"] + job["runs"]))


def _child(folder: Path) -> None:
    logging.disable()  # a decoder may warn of every input
    job = json.loads((folder / "job.json").read_text())
    corpus = [file.read_bytes() for file in sorted(folder.glob("*.corpus"))]
    module, function = job["name"].split(":")
    decode: Callable[[bytes], object] = getattr(importlib.import_module(module), function)
    for data in corpus:
        decode(data)  # imports what the decoder imports late, and proves that the corpus is honest
    limit_memory(job["headroom"])
    refusals = (CorruptDataError, UnsupportedFormatError, *((InvalidInputError,) if job["is_asked"] else ()))
    counts = {"taken": 0, "refused": 0}
    with (folder / "progress").open("r+b") as file, mmap.mmap(file.fileno(), 8) as progress:
        for number, data in zip(itertools.count(job["first"]), _inputs(job, corpus), strict=False):
            progress[:] = _NUMBER.pack(number)
            try:
                decode(data)
                counts["taken"] += 1
            except refusals:
                counts["refused"] += 1
            except BaseException:
                traceback.print_exc()
                print(f"input: {data[:500].hex()}{'...' if len(data) > 500 else ''}", file=sys.stderr)
                sys.exit(1)
    print(json.dumps(counts))


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
