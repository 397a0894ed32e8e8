"""A dashboard on rows that are still coming: DuckDB asks a table while a writer fills it.

Run: `python examples/duckdb_dashboard.py`
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa

import lance_memwal as mw

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("amount", pa.float64()),
        ("state", pa.string()),
    ]
)
CITIES = ("Lima", "Oslo", "Pune")
QUESTION = """
    select city, count(*) as orders, round(sum(amount), 2) as amount
    from orders where state <> 'cancelled' and order_id >= 0 group by city order by city
"""


def orders_of(hour: int) -> list[dict[str, object]]:
    """What comes in within an hour."""
    numbers = range(100 * hour, 100 * hour + 100)
    return [{"order_id": n, "city": CITIES[n % 3], "amount": n % 7 + 0.5, "state": "new"} for n in numbers]


def main() -> None:
    """Fill the table hour by hour, change what is there, and ask the same question each time."""
    with tempfile.TemporaryDirectory() as directory:
        table = mw.create_table(str(Path(directory) / "orders"), SCHEMA, primary_key="order_id")
        orders = table.to_dataset()  # DuckDB finds it by its name; every query reads the newest rows
        with table.writer() as writer:
            for hour in range(3):
                writer.put(orders_of(hour))
                print(f"after hour {hour + 1}:", duckdb.sql(QUESTION).fetchall())
            writer.update(where="city = 'Oslo' and order_id < 30", set={"state": "'cancelled'"})
            found = duckdb.sql(QUESTION).fetchall()
            print("ten orders of Oslo were cancelled:", found)
        if {city: count for city, count, _ in found} != {
            "Lima": 100,
            "Oslo": 90,
            "Pune": 100,
        } or orders.count_rows() != 300:
            raise SystemExit("the dashboard does not show what was written")


if __name__ == "__main__":
    main()
