"""Change data capture: follow the changes of one table and keep a second table, with another key, up to date.

Run: `python examples/cdc_to_table.py`
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64())])
LATEST = pa.schema([("customer", pa.string()), ("order_id", pa.int64()), ("amount", pa.int64())])


def copy(orders: mw.Table, latest: mw.Table) -> int:
    """Apply every change since the last call; returns how many there were.

    The place is kept beside `orders`. If this is killed before `commit`, the same changes come again, and change nothing.
    """
    consumer, count = orders.consumers.open("latest-orders", until="now"), 0
    with latest.writer() as writer:
        for batch in consumer:
            rows = [row for row in batch.to_pylist() if row["_op"] == "u"]
            newest = {row["customer"]: row for row in rows}
            if newest:
                writer.put([{"customer": c, "order_id": r["id"], "amount": r["amount"]} for c, r in newest.items()])
            consumer.commit()
            count += batch.num_rows
    return count


def main() -> None:
    """Copy in two steps, as a job that stops and starts again would."""
    with tempfile.TemporaryDirectory() as directory:
        orders = mw.create_table(str(Path(directory) / "orders"), ORDERS, primary_key="id")
        latest = mw.create_table(str(Path(directory) / "latest"), LATEST, primary_key="customer")
        with orders.writer() as writer:
            writer.put([{"id": 1, "customer": "ada", "amount": 5}, {"id": 2, "customer": "bob", "amount": 7}])
            print(f"{copy(orders, latest)} changes")
            writer.put([{"id": 3, "customer": "ada", "amount": 9}])
            print(f"{copy(orders, latest)} change")
        for row in sorted(latest.scan().to_table().to_pylist(), key=lambda row: row["customer"]):
            print(row)


if __name__ == "__main__":
    main()
