"""A small service: threads upsert events, readers ask for fresh state, the table maintains itself.

Run: `python examples/upsert_service.py`
"""

from __future__ import annotations

import random
import tempfile
import threading
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw

SCHEMA = pa.schema([("user", pa.string()), ("clicks", pa.int64()), ("page", pa.string())])


def serve(writer: mw.TableWriter, name: int, requests: int) -> None:
    """One worker: read the user's row, change it, write it back, and see the change at once."""
    for i in range(requests):
        user = f"user-{name}-{random.randrange(20)}"  # noqa: S311
        row = writer.get(user) or {"user": user, "clicks": 0, "page": ""}
        changed = {"user": user, "clicks": row["clicks"] + 1, "page": f"/page/{i}"}
        writer.put([changed])
        if writer.get(user) != changed:
            raise SystemExit("a write was not visible at once")


def main() -> None:
    """Four workers share one writer; concurrent puts share WAL entries."""
    with tempfile.TemporaryDirectory() as directory:
        table = mw.create_table(
            str(Path(directory) / "users"),
            SCHEMA,
            primary_key="user",
            sharding=mw.Bucket("user", 2),
            writer_defaults={"max_memtable_rows": 500},
        )
        with table.writer() as writer:
            workers = [threading.Thread(target=serve, args=(writer, n, 100)) for n in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            total = sum(sum(batch.column("clicks").to_pylist()) for batch in writer.scan(["clicks"]))
            print(f"{writer.count_rows()} users, {total} clicks")
        report = table.compact()
        print(f"compacted {report.generations} generations: plain Lance has {table.dataset.count_rows()} rows")


if __name__ == "__main__":
    main()
