"""A table whose rows lie in every tier, some of them superseded, with nulls, NaN and both zeros; and the rows themselves."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

import lance_memwal as mw

NAN = float("nan")
DAY = datetime.date(2026, 1, 1)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("ok", pa.bool_()),
        ("u", pa.uint64()),
        ("d", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
    ]
)


def row(number: int, **other: object) -> dict[str, object]:
    """One row; every third value is null, NaN or negative zero somewhere."""
    made = {
        "id": number,
        "city": [None, "a", "b", "c"][number % 4],
        "n": None if number % 5 == 0 else number % 7,
        "x": [1.5, NAN, None, -0.0, 0.0, 2.5][number % 6],
        "ok": [True, False, None][number % 3],
        "u": None if number % 7 == 3 else (1 << 64) - 1 - number,
        "d": None if number % 6 == 5 else number,
        "day": None if number % 8 == 1 else DAY + datetime.timedelta(days=number),
        "moment": None
        if number % 9 == 2
        else datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=number),
    }
    return made | other


OLD = [row(number, city="old") for number in range(0, 60, 2)]
COMPACTED = [row(number) for number in range(30)]
FLUSHED = [row(number) for number in range(30, 50)]
FRESH = [row(number) for number in range(50, 60)]
ROWS = pa.Table.from_pylist([*COMPACTED, *FLUSHED, *FRESH], SCHEMA)


@contextmanager
def table_in_all_tiers(uri: str, **options: object) -> Iterator[mw.Table]:
    """A table that shows `ROWS` while the context is open: its writer holds the newest of them in memory."""
    table = mw.create_table(uri, pa.Table.from_pylist(OLD, SCHEMA), primary_key="id", **options)  # type: ignore[arg-type]
    settings = {"fsync": False, "stats_log_interval_ms": None}
    with table.writer(compaction=None, **settings) as writer:
        writer.put(pa.Table.from_pylist(COMPACTED, SCHEMA))
    table.compact()
    with table.writer(compaction=None, **settings) as writer:
        writer.put(pa.Table.from_pylist([*FLUSHED, row(99)], SCHEMA))
        writer.delete([99])
    with table.writer(compaction=None, **settings) as writer:
        writer.put(pa.Table.from_pylist(FRESH, SCHEMA))
        yield table


CONDITIONS = [
    "true",
    "id = 7",
    "id > 10 and id <= 40 and city = 'a'",
    "city in ('a', 'c')",
    "city not in ('a', 'c')",
    "city not in ('a', 'b', 'p', 'q', 'r', 's', 't')",
    "not (city in ('a', 'q', 'w', 'e', 'r', 't'))",
    "n in (1, 2, 3, 4, 5, null)",
    "n not in (1, 2, 3, 4, 5)",
    "(n in (1, 2, 3, 4, 5, 6)) is null",
    "x > 0.5",
    "x >= 1.5 and city is not null",
    "not (x > 0.5)",
    "x <> 0.0",
    "ok",
    "not ok",
    "ok is not true",
    "n between 2 and 4",
    "n not between 2 and 4",
    "n + 1 > 4",
    "n > 2.5",
    "u = 18446744073709551610",
    "u > 18446744073709551600",
    "d > 20.5",
    "d = 7",
    "day >= date '2026-02-01'",
    "moment < timestamp '2026-01-02 00:00:00+00:00'",
    "city > 'a' or n is null",
    "n is distinct from 3",
    "city like 'a%' and id < 30",
    "city = 'a' or city = 'b' or city = 'b'",
    "city is null and n is not null",
]
