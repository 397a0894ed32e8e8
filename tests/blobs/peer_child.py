"""pylance's own writer and reader on a table with a blob column, in a process of its own, which dies without closing.

Run as `peer_child.py put|delete|ids URI SHARD KEY=SIZE ...`: a size of `null` is a null blob. The bytes follow from the key.
"""

from __future__ import annotations

import json
import os
import sys

import lance
import pyarrow as pa
from lance.blob import blob_array


def blob_of(key: int, size: str) -> bytes | None:
    """The blob of a key."""
    return None if size == "null" else (b"%d." % key * int(size))[: int(size)]


def main() -> None:
    what, uri, shard, *rows = sys.argv[1:]
    dataset = lance.dataset(uri)
    writer = dataset.mem_wal_writer(shard)
    for row in rows:
        key, _, size = row.partition("=")
        if what == "delete":
            writer.delete(pa.table({"id": [int(key)]}))
            continue
        image = [blob_of(int(key), size)]
        second = isinstance(dataset.schema.field("image").type, pa.BaseExtensionType)
        images = blob_array(image) if second else pa.array(image, pa.large_binary())
        writer.put(pa.Table.from_arrays([pa.array([int(key)]), images, pa.array([key])], schema=dataset.schema))
    if what == "close":
        writer.close()
    print(
        json.dumps(
            sorted(writer.lsm_scanner().project(["id"]).to_table().column("id").to_pylist()) if what == "ids" else []
        )
    )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
