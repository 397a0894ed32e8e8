"""Small SSTables of a shard are read together, a batch for many of them: what a scan shows is what it shows of each alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("kind", pa.dictionary(pa.int8(), pa.string()))]
)
PLAIN = pa.schema(list(SCHEMA)[:2])
GENERATIONS, KEYS = 30, 40
Model = dict[int, tuple[int, int]]  # by key: value and generation


def grown(place: Path, *, with_base: bool = False) -> tuple[mw.Table, Model]:
    """Generations that replace and delete rows of each other, and of the base table if the first is compacted."""
    table = mw.create_table(str(place), PLAIN, primary_key="id", writer_defaults={"fsync": False})
    rng, model = np.random.default_rng(5), Model()
    with table.writer(compaction=None) as writer:
        for number in range(GENERATIONS):
            keys = np.unique(rng.integers(0, KEYS, 8)).tolist()
            writer.put(pa.Table.from_pylist([{"id": key, "v": 100 * number + key} for key in keys], schema=PLAIN))
            gone = rng.integers(0, KEYS, 2).tolist()
            writer.delete(gone)
            writer.flush()
            if with_base and number == 0:
                table.compact()
            model.update({key: (100 * number + key, number + 1) for key in keys})
            for key in gone:
                model.pop(key, None)
    return table, model


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[mw.Table, Model]:
    return grown(tmp_path_factory.mktemp("fresh") / "t")


def test_the_newest_row_of_each_key_shows_once(tmp_path: Path) -> None:
    table, model = grown(tmp_path / "t", with_base=True)
    batches = list(table.scan().to_batches())
    found = pa.Table.from_batches(batches)
    assert sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == sorted(
        (key, value) for key, (value, _) in model.items()
    )
    assert len(batches) <= 2, "a batch of the SSTables, one of the base table"


def test_a_filter_may_ask_for_a_column_that_is_not_shown(fresh: tuple[mw.Table, Model]) -> None:
    table, model = fresh
    found = table.scan(columns=["id"], filter="v >= 2000").to_table()
    assert found.schema.names == ["id"]
    assert sorted(found["id"].to_pylist()) == sorted(key for key, (value, _) in model.items() if value >= 2000)
    assert table.scan(columns=[], filter="v >= 2000").to_table().num_rows == found.num_rows
    assert table.scan(columns=["v"], limit=3).to_table().num_rows == 3


def test_every_row_shows_its_own_generation(fresh: tuple[mw.Table, Model]) -> None:
    table, model = fresh
    found = table.scan(with_generation=True).to_table()
    shown = dict(zip(found["id"].to_pylist(), found["_memtable_gen"].to_pylist(), strict=True))
    assert shown == {key: generation for key, (_, generation) in model.items()}


def test_dictionaries_that_arrow_cannot_join_are_read_one_by_one(tmp_path: Path) -> None:
    """Each generation has a few values; those of all together are more than an index of eight bits counts."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        for number in range(3):
            ids = list(range(100 * number, 100 * number + 100))
            names = pa.array([f"kind {key}" for key in ids]).dictionary_encode().cast(SCHEMA.field("kind").type)
            writer.put(pa.table([pa.array(ids), pa.array(ids), names], schema=SCHEMA))
            writer.flush()
    found = [row for batch in table.scan().to_batches() for row in batch.to_pylist()]
    assert {row["id"]: row["kind"] for row in found} == {key: f"kind {key}" for key in range(300)}
