"""Generations as Lance 12 and older write them: with field ids 0..n in column order.

`number_by_position` rewrites a generation of a pylance of today that way.
"""

import shutil
from pathlib import Path

import lance

from lance_memwal.lance import wire
from lance_memwal.lance.manifest import TRANSACTION_FILE, TRANSACTION_SECTION, join_manifest_file, version_path

_FOOTER_BYTES = 16


def flush_by_pylance(uri: str, shard_id: str, *batches: object) -> None:
    """Each batch becomes one generation of a shard that pylance writes."""
    for batch in batches:
        dataset = lance.dataset(uri)
        writer = dataset.mem_wal_writer(
            shard_id, durable_write=True, max_wal_buffer_size=1, max_wal_flush_interval_ms=10
        )
        writer.put(batch)
        writer.close()


def number_by_position(uri: str, shard_id: str, *, with_transaction: bool = True) -> list[Path]:
    """Give every generation of a shard the field ids that old versions write; returns their directories.

    The manifest of a generation with duplicate keys does not name its transaction (`with_transaction=False`).
    """
    directories = sorted((Path(uri) / "_mem_wal" / shard_id).glob("*_gen_*"))
    for directory in directories:
        rows = lance.dataset(str(directory)).to_table()
        for name in ("data", "_versions", "_transactions"):
            shutil.rmtree(directory / name)
        lance.write_dataset(rows, str(directory))
        if not with_transaction:
            _forget_transaction(directory / version_path(1))
    return directories


def _forget_transaction(path: Path) -> None:
    data = path.read_bytes()
    start = int.from_bytes(data[-_FOOTER_BYTES : -_FOOTER_BYTES + 8], "little")
    message = wire.Message(data[start + 4 : -_FOOTER_BYTES])
    left = [field for field in message.fields if field.number not in (TRANSACTION_FILE, TRANSACTION_SECTION)]
    path.write_bytes(join_manifest_file(left))
