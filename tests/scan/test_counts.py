"""Counts of live rows: those of a scan for every type of key, and read from no more than what knows them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE

KINDS = ["int64", "bool", "string", "binary", "uuid", "composite"]


def key_of(kind: str, number: int) -> dict[str, Any]:
    texts = f"key-{number:03d}" + "x" * (number % 3)
    return {
        "int64": {"id": number},
        "bool": {"id": bool(number % 2)},
        "string": {"id": texts},
        "binary": {"id": bytes([number % 256, 0, number // 256])[: 1 + number % 3] + texts.encode()},
        "uuid": {"id": number.to_bytes(16, "big")},
        "composite": {"tenant": f"t{number % 7}", "id": number},
    }[kind]


def make(place: Path, kind: str) -> mw.Table:
    types = {
        "int64": pa.int64(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "uuid": pa.binary(16),
    }
    columns = [("tenant", pa.string()), ("id", pa.int64())] if kind == "composite" else [("id", types[kind])]
    schema = pa.schema([*columns, ("value", pa.int64())])
    key = [name for name, _ in columns]
    return mw.create_table(
        str(place), schema, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def rows(kind: str, numbers: np.ndarray) -> list[dict[str, Any]]:
    return [key_of(kind, n) | {"value": None if n % 5 == 0 else n} for n in numbers.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_count_is_that_of_a_scan_over_all_tiers(tmp_path: Path, kind: str) -> None:
    table, draw, live = make(tmp_path / "t", kind), np.random.default_rng(3), {}

    def check() -> None:
        for cold in (False, False, True):  # the second count may know more than the first, and a cold one nothing
            if cold:
                CACHE.clear()
            assert table.count_rows() == len(live)
        assert table.scan().to_table().num_rows == len(live)

    with table.writer(compaction=None) as writer:
        for step in range(6):
            written = draw.integers(0, 300, 120)
            writer.put(pa.Table.from_pylist(rows(kind, written), schema=table.schema))
            live |= {tuple(key_of(kind, n).values()): n for n in written.tolist()}
            gone = draw.integers(0, 300, 20)
            writer.delete([key_of(kind, n) for n in gone.tolist()])
            for number in gone.tolist():
                live.pop(tuple(key_of(kind, number).values()), None)
            check()
            if step % 2:
                writer.flush()
                check()
            if step == 3:
                table.compact()
                check()


def without_data(table: mw.Table, *below: str) -> mw.Table:
    """The table as a new process finds it, with all files of rows gone."""
    for place in (Path(table.uri, *below)).rglob("data"):
        shutil.rmtree(place)
    CACHE.clear()
    return mw.open_table(table.uri)


def test_manifests_count_what_was_compacted(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "string")
    with table.writer(compaction=None) as writer:
        writer.put(pa.Table.from_pylist(rows("string", np.arange(50)), schema=table.schema))
        writer.flush()
    table.compact()
    assert without_data(table).count_rows() == 50


def test_manifests_count_tables_without_a_key(tmp_path: Path) -> None:
    schema = pa.schema([("value", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        for _ in range(2):
            writer.put([{"value": 1}] * 10)
            writer.flush()
            table.compact(max_generations=1)
        writer.put([{"value": 1}] * 3)
        writer.flush()
        writer.put([{"value": 1}] * 4)
    assert without_data(table).count_rows() == 27


def test_a_count_reads_no_row_of_an_sstable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_memwal.sstable.read import SsTableReader

    table = make(tmp_path / "t", "composite")
    with table.writer(compaction=None) as writer:
        for _ in range(3):
            writer.put(pa.Table.from_pylist(rows("composite", np.arange(50)), schema=table.schema))
            writer.flush()
    CACHE.clear()
    asked, batches = [], SsTableReader.batches

    def watched(self: SsTableReader, schema: Any, columns: Any, *rest: Any) -> Any:
        asked.append(list(columns))
        return batches(self, schema, columns, *rest)

    monkeypatch.setattr(SsTableReader, "batches", watched)
    assert table.count_rows() == 50
    assert asked == [[], [], []]
    assert table.count_rows() == 50
    assert len(asked) == 3


@pytest.mark.parametrize("kind", ["int64", "bool", "string", "composite"])
def test_keys_alone_count_a_table_with_nothing_in_memory(tmp_path: Path, kind: str) -> None:
    """The first count needs no index; later ones, a new SSTable, a delete and another base version are counted as ever."""
    table, draw, live = make(tmp_path / "t", kind), np.random.default_rng(4), set()

    def write(numbers: list[int], *gone: int) -> None:
        with table.writer(compaction=None) as writer:
            writer.put(pa.Table.from_pylist(rows(kind, np.array(numbers)), schema=table.schema))
            live.update(tuple(key_of(kind, n).values()) for n in numbers)
            if gone:
                writer.delete([key_of(kind, n) for n in gone])
                live.difference_update(tuple(key_of(kind, n).values()) for n in gone)

    def check() -> None:
        CACHE.clear()
        for _ in range(3):
            assert table.count_rows() == len(live)

    write(list(range(40)))
    check()
    write(list(range(40)))  # the same keys again
    check()
    table.compact()
    check()
    write(draw.integers(20, 80, 30).tolist())
    check()
    write(draw.integers(20, 80, 30).tolist())
    assert table.count_rows() == len(live), "a new SSTable after a count"
    check()
    table.compact(max_generations=1)
    assert table.count_rows() == len(live), "another base version after a count"
    write([5], 6, 7, 90)
    check()
