"""Random histories: whatever happened, rows before compaction are rows after it, and the newest tier decides."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lance_memwal as mw
from tests.harness.profile import scaled

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYS = st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS),
    st.tuples(st.just("put"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("compact"), st.sampled_from([1, 2, None])),
    st.tuples(st.just("gc"), st.none()),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("base_update"), KEYS),
    st.tuples(st.just("base_delete"), KEYS),
    st.tuples(st.just("base_append"), st.none()),
)


class History:
    """A table with one shard beside a model of its tiers: base, generations, and what is not flushed yet."""

    def __init__(self, place: str, *, key: bool) -> None:
        self.key = key
        self.table = mw.create_table(
            place,
            SCHEMA,
            primary_key="id" if key else None,
            sharding=mw.Unsharded(),
            writer_defaults={"fsync": False},
        )
        self.writer = self.table.writer(compaction=None)
        self.number = 0
        self.base: list[tuple[int, int | None]] = []
        self.generations: list[list[tuple[int, int | None]]] = []
        self.active: list[tuple[int, int | None]] = []

    def run(self, steps: list[tuple[str, Any]]) -> None:
        for name, value in steps:
            self.number += 1
            getattr(self, name)(value)
            assert self.shown(self.table.scan().to_table()) == self.expected()
        self.flush(None)
        self.compact(None)
        assert self.shown(self.table.scan().to_table()) == self.expected()
        assert self.shown(lance.dataset(self.table.uri).to_table()) == self.expected()
        assert self.table.verify().problems == []
        self.writer.close()

    # ------------------------------------------------------------------------------------------------------ the model

    def expected(self) -> list[tuple[int, int]]:
        tiers = [self.base, *self.generations, self.active]
        return self.fold([row for tier in tiers for row in tier])

    def fold(self, rows: list[tuple[int, int | None]]) -> list[tuple[int, int]]:
        if not self.key:
            return sorted((k, v) for k, v in rows if v is not None)
        return sorted((k, v) for k, v in dict(rows).items() if v is not None)

    def shown(self, table: pa.Table) -> list[tuple[int, int]]:
        return sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))

    # ------------------------------------------------------------------------------------------------------ the steps

    def put(self, keys: list[int]) -> None:
        self.writer.put({"id": keys, "v": [self.number] * len(keys)})
        self.active += [(k, self.number) for k in keys]

    def delete(self, keys: list[int]) -> None:
        if self.key:
            self.writer.delete(keys)
            self.active += [(k, None) for k in keys]

    def flush(self, _: None) -> None:
        self.writer.flush()
        if self.active:
            self.generations.append(self.active)
            self.active = []

    def compact(self, most: int | None) -> None:
        count = len(self.generations) if most is None else min(most, len(self.generations))
        report = self.table.compact(max_generations=most)
        assert report.generations == count
        for generation in self.generations[:count]:
            self.base = list(self.fold(self.base + generation))
        del self.generations[:count]

    def gc(self, _: None) -> None:
        assert self.table.gc(grace_seconds=0).refused == {}

    def reopen(self, cleanly: bool) -> None:
        if cleanly:
            self.flush(None)
            self.writer.close()
        else:
            self.writer.abort()
        self.table = mw.open_table(self.table.uri)
        self.writer = self.table.writer(compaction=None)
        self.writer.put([])
        if self.active:  # the next open replays them
            self.writer.put({"id": [99], "v": [self.number]})
            self.active.append((99, self.number))

    def base_update(self, keys: list[int]) -> None:
        names = ", ".join(map(str, keys))
        self.table.dataset.update({"v": str(self.number)}, where=f"id in ({names})")
        self.base = [(k, self.number if k in keys else v) for k, v in self.base]

    def base_delete(self, keys: list[int]) -> None:
        names = ", ".join(map(str, keys))
        self.table.dataset.delete(f"id in ({names})")
        self.base = [(k, v) for k, v in self.base if k not in keys]

    def base_append(self, _: None) -> None:
        rows = pa.table({"id": [1000 + self.number], "v": [self.number]}, schema=self.table.schema)
        lance.write_dataset(rows, self.table.uri, mode="append")
        self.base.append((1000 + self.number, self.number))


@pytest.mark.scaled
@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", [True, False])
def test_rows_before_compaction_are_rows_after_it_and_rows_of_plain_lance(key: bool) -> None:
    @settings(
        max_examples=scaled(ci=12, prove=150),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.lists(STEPS, min_size=3, max_size=18))
    def check(steps: list[tuple[str, Any]]) -> None:
        with tempfile.TemporaryDirectory() as place:
            History(str(Path(place) / "t"), key=key).run(steps)

    check()
