"""Entries with blobs of the second layout as the peer writes them, and a place that has the files which they name."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SHARD = "11111111-2222-4333-8444-555555555555"
_HELD = b"0123456789"


def _target() -> Any:
    from lance_memwal.log.blob_targets import BlobTarget

    return BlobTarget.of("0a0b0c0d", SHARD, 3, 7, 8000)


@cache
def place() -> Any:
    """A table's directory with one file of blobs, on a real file system: its limits are part of what is met."""
    from lance_memwal.store import paths
    from lance_memwal.store.location import resolve

    root = tempfile.mkdtemp(prefix="memwal-fuzz-")
    file = Path(root) / paths.blob_path(SHARD, _target().directory, _target().data_file, 1)
    file.parent.mkdir(parents=True)
    file.write_bytes(_HELD)
    return resolve(root)


@cache
def schema_with_blobs() -> Any:
    import pyarrow as pa
    from lance.blob import blob_field

    from lance_memwal.rows.schema import TableSchema

    return TableSchema.from_arrow(pa.schema([("id", pa.int64()), blob_field("image"), ("tag", pa.json_())]))


def entry(*images: dict[str, Any] | None) -> bytes:
    """One entry with a row per image; no footer, so that nothing but its content is hostile."""
    import pyarrow as pa

    schema = schema_with_blobs().wal.with_metadata({b"writer_epoch": "7", b"generation": "3", **_target().metadata()})
    count = len(images)
    arrays = [pa.array(range(count)), pa.array(images, schema.types[1]), pa.nulls(count, schema.types[2])]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([*arrays, pa.array([False] * count)], schema=schema))
    return bytes(sink.getvalue())


def image(kind: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "data": None, "uri": None, "blob_id": None, "blob_size": None, "position": None, **more}


def entries() -> list[bytes]:
    """Blobs in the entry, in a file with others, in a file of their own, and in an object of somebody else."""
    packed, alone = image(1, blob_id=1, blob_size=3, position=4), image(2, blob_id=1, blob_size=len(_HELD))
    external = image(3, uri="s3://elsewhere/x", blob_id=0, blob_size=5, position=2)
    return [entry(image(0, data=b"abc"), None), entry(packed, alone, external, image(0, data=b""))]
