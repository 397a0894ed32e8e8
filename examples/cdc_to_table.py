"""Change data capture: follow one table's log and keep a second table, with another key, up to date.

Run: `python examples/cdc_to_table.py`
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64())])
LATEST = pa.schema([("customer", pa.string()), ("order_id", pa.int64()), ("amount", pa.int64())])


def copy(source: str, shard_id: str, target: mw.Table, start: int) -> int:
    """Apply every entry from `start` on, each exactly once, and return where to go on next time."""
    tailer, position = mw.WalTailer(source, shard_id), start
    with target.writer() as writer:
        while (entry := tailer.read_entry(position)) is not None:
            rows = [row for batch in entry.batches for row in batch.to_pylist() if not row["_tombstone"]]
            latest = {row["customer"]: row for row in rows}
            if latest:
                changed = [{"customer": c, "order_id": r["id"], "amount": r["amount"]} for c, r in latest.items()]
                writer.put(changed, txn=("cdc", position))  # repeating this position changes nothing
            position += 1
    return position


def main() -> None:
    """Copy in two steps, as a job that stops and starts again would."""
    with tempfile.TemporaryDirectory() as directory:
        source = str(Path(directory) / "orders")
        orders = mw.create_table(source, ORDERS, primary_key="id", sharding=mw.Unsharded())
        latest = mw.create_table(
            str(Path(directory) / "latest"), LATEST, primary_key="customer", sharding=mw.Unsharded()
        )
        with orders.shard_writer() as writer:
            writer.put([{"id": 1, "customer": "ada", "amount": 5}, {"id": 2, "customer": "bob", "amount": 7}])
            position = copy(source, writer.shard_id, latest, 1)
            writer.put([{"id": 3, "customer": "ada", "amount": 9}])
            position = copy(source, writer.shard_id, latest, position)
        for row in sorted(latest.scan().to_table().to_pylist(), key=lambda row: row["customer"]):
            print(row)
        print(f"next position: {position}")


if __name__ == "__main__":
    main()
