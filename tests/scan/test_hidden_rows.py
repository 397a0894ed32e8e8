"""Rows of the base table stay hidden, whether their keys are compared or their row ids are known from an earlier read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.read import base_rows
from lance_memwal.read.superseded_rows import SupersededRows
from lance_memwal.rows.keys import KeySet

BASE_ROWS = 120
KINDS = ["int64", "string", "binary", "composite"]


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    CACHE.clear()
    yield
    CACHE.clear()


def key_of(kind: str, number: int) -> dict[str, Any]:
    return {
        "int64": {"id": number},
        "string": {"id": "é" * (number % 4) + str(number)},
        "binary": {"id": bytes(number % 5) + bytes([number % 256, 0, number // 256])},
        "composite": {"tenant": "\0" * (number % 3), "id": number},
    }[kind]


class Life:
    """A table with two fragments, its writer, and what it must show."""

    def __init__(self, place: Path, kind: str, *, stable: bool = False, sharding: Any = None) -> None:
        self.kind = kind
        self.live: dict[int, str] = dict.fromkeys(range(BASE_ROWS), "base")
        rows = self.rows(list(range(BASE_ROWS)), "base")
        key = [name for name in rows.schema.names if name != "v"]
        schema = pa.schema([f.with_nullable(f.name == "v") for f in rows.schema])
        first, second = rows.cast(schema).slice(0, 70), rows.cast(schema).slice(70)
        lance.write_dataset(first, str(place), enable_stable_row_ids=stable)
        lance.write_dataset(second, str(place), mode="append")
        sharding = sharding if sharding is not None else mw.Unsharded()
        self.table = mw.enable(str(place), primary_key=key, sharding=sharding, writer_defaults={"fsync": False})
        self.writer = self.table.writer(compaction=None)

    def rows(self, numbers: list[int], word: str) -> pa.Table:
        return pa.Table.from_pylist([key_of(self.kind, n) | {"v": f"{word} {n}"} for n in numbers])

    def put(self, numbers: list[int], word: str) -> None:
        self.writer.put(self.rows(numbers, word))
        self.live.update(dict.fromkeys(numbers, word))

    def delete(self, numbers: list[int]) -> None:
        keys = [tuple(key_of(self.kind, n).values()) for n in numbers]
        self.writer.delete(keys if self.kind == "composite" else [key[0] for key in keys])
        for number in numbers:
            self.live.pop(number, None)

    def expected(self) -> list[str]:
        return sorted(f"{word} {n}" for n, word in self.live.items())

    def check(self) -> None:
        for columns in (["v"], None, ["v"], None):
            assert sorted(self.table.scan(columns).to_table().column("v").to_pylist()) == self.expected()
        some = sorted(self.table.scan(["v"], filter="v like 'base 1%'").to_table().column("v").to_pylist())
        assert some == [text for text in self.expected() if text.startswith("base 1")]
        assert self.table.count_rows() == len(self.live)


def live_through(life: Life) -> None:
    with life.writer:
        life.check()
        life.put([3, 50, 99, 200], "one")
        life.delete([4, 71, 300])
        life.check()
        life.put([3, 51, 201], "two")
        life.check()
        life.writer.flush()
        life.check()
        life.delete([51, 52])
        life.check()
        life.put([4, 52, 118], "three")
        life.check()
        CACHE.clear()
        life.check()
        life.writer.flush()
        life.put([0], "four")
        life.check()
        life.table.compact()
        life.check()
        life.put([5, 3], "five")
        life.check()


@pytest.mark.parametrize("kind", KINDS)
def test_reads_beside_writes_hide_what_was_replaced_so_far(tmp_path: Path, kind: str) -> None:
    live_through(Life(tmp_path / "t", kind))


@pytest.mark.parametrize("rows_per_taken", [0, 1 << 20])
def test_rows_with_stable_ids_are_hidden_by_them(
    tmp_path: Path, rows_per_taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_rows, "_PASSED_PER_TAKEN", rows_per_taken)  # compared one by one, or by a pass
    live_through(Life(tmp_path / "t", "string", stable=True, sharding=mw.Bucket("id", 3)))


def test_a_cache_that_keeps_nothing_changes_nothing(tmp_path: Path) -> None:
    limit = CACHE.limit_bytes
    mw.set_cache_bytes(0)
    try:
        live_through(Life(tmp_path / "t", "string"))
    finally:
        mw.set_cache_bytes(limit)


@pytest.mark.parametrize("kind", ["string", "binary", "composite"])
def test_scans_again_and_again_compare_no_key_of_the_base_table(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "t", kind)
    compared: list[int] = []
    honest = KeySet.of_rows
    monkeypatch.setattr(KeySet, "of_rows", lambda s, rows, key: compared.append(rows.num_rows) or honest(s, rows, key))
    with life.writer:
        life.put([1, 2, 80], "one")
        life.writer.flush()
        life.put([2, 81, 400], "two")
        for _ in range(2):
            list(life.table.scan().to_batches())
        assert sum(compared) == 2 * BASE_ROWS
        compared.clear()
        for _ in range(2):
            assert life.table.scan(["v"]).to_table().num_rows == len(life.live)
            assert life.table.count_rows() == len(life.live)
        assert not compared
        life.put([5], "three")
        life.check()
        assert compared
        compared.clear()
        life.check()
        assert not compared


def test_a_scan_that_stops_early_teaches_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path / "t", "string")
    with life.writer:
        life.put([1, 2, 119], "one")
        assert life.table.scan(limit=10).to_table().num_rows == 10
        batches = life.table.scan().to_batches()
        next(batches), next(batches)
        batches.close()
        assert life.table.scan(filter="v = 'base 7'").to_table().num_rows == 1
        life.check()


def test_an_older_snapshot_does_not_miss_what_newer_ones_hide(tmp_path: Path) -> None:
    life = Life(tmp_path / "t", "string")
    with life.writer:
        life.put([1, 2], "one")
        older, before = life.table.scan(["v"]), life.expected()
        life.put([3, 4], "two")
        life.check()
        assert sorted(older.to_table().column("v").to_pylist()) == before
        life.check()
        assert sorted(older.to_table().column("v").to_pylist()) == before


def test_row_ids_in_any_order_are_found() -> None:
    hidden = SupersededRows(np.array([2, 5, 9, 1 << 40]), np.array([5, 7]), None)
    for row_ids in ([0, 2, 3, 7, 9], [9, 2, 0, 5], [5], [], [10, 11], [1 << 40], [0, 1], [7, 7, 8]):
        found = hidden.hides(np.array(row_ids, np.int64))
        assert found.tolist() == [i in {2, 5, 7, 9, 1 << 40} for i in row_ids]
    assert hidden.all.tolist() == [2, 5, 7, 9, 1 << 40]
