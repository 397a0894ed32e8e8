"""Ask filters and expressions whose error names a value with a NUL, in every tier and verb, and print the answers."""

import datetime as dt
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from tests.kit.filters import in_every_tier

BAD = "word\0("
TIME = dt.datetime(2024, 1, 1)
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "s": ["10", BAD],
        "ls": pa.array(["2024-01-01T00:00:00", BAD], pa.large_string()),
        "dic": pa.array(["1", BAD]).dictionary_encode(),
        "l": [["1"], [BAD]],
        "st": [{"x": "1"}, {"x": BAD}],
        "b": [b"1", BAD.encode()],
        "j": pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps({"a": text}) for text in ("1", BAD)])),
        "ts": pa.array([TIME, TIME], pa.timestamp("us")),
        "flag": [True, True],
        "i": pa.array([1, 0], pa.int32()),
        "cast": ["1", BAD],
        "v": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float32(), 2)),
    },
)
FAILING = [
    "cast(s as int) = 10",
    "s::double > 1",
    "arrow_cast(s, 'Decimal128(10, 2)') > 1",
    "cast(s as boolean)",
    "id = s",
    "i in (s)",
    "flag and s < i",
    "cast(ls as timestamp) = ts",
    "ls = ts",
    "ls > date '2024-01-01'",
    "to_timestamp(ls) = ts",
    "cast(dic as bigint) = 1",
    "cast(l[1] as int) = 1",
    "arrow_cast(l, 'List(Int8)') is null",
    "cast(st.x as int) = 1",
    "cast(cast(b as string) as smallint) = 1",
    "cast(json_get_string(j, 'a') as int) = 1",
    "json_exists(j, s)",
    "regexp_match('x', s)",
    "regexp_like(s, ls)",
    "regexp_replace(s, s, 'x') = 'a'",
    "regexp_match(s, 'word\0(')",
    "cast(chr(i - i) || s as int) = 1",
    "cast(concat(chr(i - 1), chr(i)) as int) = 1",
    "cast(`cast` as int) = 1",
    "not (cast(lower(s) as int) = 10)",
    "id > 0 and coalesce(cast(s as int), 1) = 10",
    "cast(s as int) = 10 or id = 1",
]
EXPRESSIONS = {
    "s": "cast(cast(s as int) as string)",
    "i": "cast(s as int)",
    "ts": "to_timestamp(ls)",
    "flag": "regexp_match(s, ls)",
}


def reads(table: mw.Table, text: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "scan", lambda: table.scan(filter=text).to_table()
    yield "batches", lambda: list(table.scan(["id"], text, 5))
    yield "ordered", lambda: table.scan(["id"], text, 1, order_by="id").to_table()
    yield "count", lambda: table.count_rows(text)
    yield "feed", lambda: list(table.changes(until="now", filter=text))
    yield "dataset", lambda: table.to_dataset().to_table(filter=text)
    yield "vectors", lambda: table.search([1.0, 0.0], k=1, filter=text)
    yield "words", lambda: table.search(text="word", column="ls", k=1, filter=text)
    if "::" in text:
        yield "sql", lambda: table.sql(f"select id from t where {text}")


def writes(writer: mw.TableWriter, text: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    row = ROWS.slice(1, 1)
    yield "put", lambda: writer.put(row, where=text)
    yield "update", lambda: writer.update(where=text, values={"i": 5})
    yield "delete", lambda: writer.delete(where=text)


def outcome_of(ask: Callable[[], Any]) -> str:
    try:
        ask()
    except mw.InvalidInputError as error:
        return "a NUL is in the error" if "\0" in str(error) else "refused"
    return "answered"


def print_outcome(where: str, what: str, ask: Callable[[], Any]) -> None:
    """Print the question first: it may crash the process."""
    sys.stdout.write(f"{where}: {what!r}: ")
    sys.stdout.flush()
    print(outcome_of(ask), flush=True)


def main() -> None:
    tiers = iter(("memtable", "tail", "SSTable", "SSTable not kept", "base"))

    def ask(table: mw.Table) -> None:
        tier = next(tiers)
        for text in FAILING:
            for name, read in reads(table, text):
                print_outcome(f"{tier} {name}", text, read)
        if tier in ("SSTable", "base"):
            with table.writer(compaction=None) as writer:
                for text in FAILING:
                    for name, write in writes(writer, text):
                        print_outcome(f"{tier} {name}", text, write)
                for column, text in EXPRESSIONS.items():
                    print_outcome(f"{tier} set", text, partial(writer.update, where="true", set={column: text}))

    in_every_tier(tempfile.mkdtemp() + "/t", ROWS.cast(_keyed(ROWS.schema)), ask)


def _keyed(schema: pa.Schema) -> pa.Schema:
    return schema.set(0, schema.field("id").with_nullable(False))


if __name__ == "__main__":
    main()
