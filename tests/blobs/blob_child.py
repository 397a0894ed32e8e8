"""Stages in the life of a table with many blobs, in a process of its own, that says how much memory they took.

Run as `blob_child.py STAGE,... URI MEMTABLE_MIB COUNT:BYTES ...`. Prints `acked KEY` for every put that was acknowledged, and
at the end of each stage one line of JSON: the largest resident size while it ran, above that before it, and what was found.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import lance_memwal as mw
from tests.kit.blobs import SCHEMA

MIB = 1 << 20
CHUNK_BYTES = 256 << 10


def blob_of(key: int, size: int) -> bytes:
    """The blob of a key."""
    return np.random.default_rng(key).bytes(size)


def keys_of(kinds: list[str]) -> Iterator[tuple[int, int]]:
    """Every key with the size of its blob; small and large ones take turns."""
    sizes = [(int(count), int(size)) for count, size in (kind.split(":") for kind in kinds)]
    order = sorted((place / count, size, count) for count, size in sizes for place in range(count))
    yield from enumerate(size for _, size, _ in order)


def resident_bytes() -> int:
    """Pages of this process in memory that no file backs."""
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) << 10


class Peak:
    """The largest resident size while it is open, above the one at the start."""

    def __enter__(self) -> Peak:
        self._before = self._largest = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.002):
            self._largest = max(self._largest, resident_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def above_bytes(self) -> int:
        """How much more there was."""
        return self._largest - self._before


def opened(table: mw.Table, memtable_mib: int) -> mw.ShardWriter:
    """A writer with memtables of this size, and room for two of them."""
    return table.shard_writer(
        max_memtable_size=memtable_mib * MIB, max_unflushed_memtable_bytes=2 * memtable_mib * MIB, fsync=False
    )


def write(table: mw.Table, kinds: list[str], memtable_mib: int) -> dict[str, int]:
    with opened(table, memtable_mib) as writer:
        for key, size in keys_of(kinds):
            image = pa.array([blob_of(key, size)], pa.large_binary())
            writer.put(pa.RecordBatch.from_arrays([pa.array([key]), image, pa.array([str(size)])], schema=SCHEMA))
            print("acked", key, flush=True)
    return {}


def read(table: mw.Table, kinds: list[str], _: int) -> dict[str, int]:
    """How many blobs are there, right in size and bytes; every one is read in small pieces."""
    sizes = dict(keys_of(kinds))
    found = table.scan(["id", "image"]).to_table().to_pylist()
    assert all(row["image"]["size"] == sizes[row["id"]] for row in found)
    for row in found:
        digest, file = hashlib.blake2b(), table.get_blob(row["id"], "image")
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
        assert digest.digest() == hashlib.blake2b(blob_of(row["id"], sizes[row["id"]])).digest(), row
    return {"found": len(found), "last": max(row["id"] for row in found)}


def scan(table: mw.Table, _: list[str], __: int) -> dict[str, int]:
    return {"found": table.scan().to_table().num_rows}


def replay(table: mw.Table, _: list[str], memtable_mib: int) -> dict[str, int]:
    opened(table, memtable_mib).close()
    return {}


def compact(table: mw.Table, _: list[str], __: int) -> dict[str, int]:
    return {"rows": table.compact().rows_written}


def main() -> None:
    named, uri, memtable_mib, *kinds = sys.argv[1:]
    table = mw.open_table(uri)
    stages = {"write": write, "read": read, "scan": scan, "replay": replay, "compact": compact}
    for stage in named.split(","):
        with Peak() as peak:
            told = stages[stage](table, kinds, int(memtable_mib))
        print(json.dumps({"stage": stage, "peak_mib": round(peak.above_bytes / MIB, 1), **told}), flush=True)


if __name__ == "__main__":
    main()
