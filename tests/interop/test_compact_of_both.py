"""Generations of pylance's writer and of ours, with columns of every kind, end as the same rows of the base table."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.key_encoding import hash_is_exact
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.store.location import resolve
from tests.kit.interop_tables import APPEND, CASES, NAMES, SHAPES, Duel, Shape, in_order
from tests.kit.roll_ups import roll_up_all
from tests.kit.tables import watched_table

SMALL = {"max_memtable_rows": 12}
PLAIN = next(shape for shape in SHAPES if shape.name == "string key")


def _write(duel: Duel, who: str) -> None:
    writer = duel.peer(**SMALL) if who == "peer" else duel.ours(**SMALL)
    with writer:
        duel.write_some(writer, 1)


@pytest.mark.parametrize(("shape", "storage"), [*CASES, (APPEND, "2.1")], ids=[*NAMES, "append-only 2.1"])
@pytest.mark.parametrize("first", ["peer", "ours"])
def test_plain_lance_shows_every_row_after_compaction(shape: Shape, storage: str, first: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    _write(duel, first)
    _write(duel, "ours" if first == "peer" else "peer")
    report = mw.open_table(duel.uri).compact()
    assert report.generations >= 2
    dataset = lance.dataset(duel.uri)
    dataset.validate()
    assert in_order(dataset.to_table()) == duel.rows


@pytest.mark.parametrize("who", ["peer", "ours"])
def test_generations_of_both_are_read_from_their_data_files(who: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    _write(duel, who)
    location = resolve(duel.uri)
    manifest = ShardManifestStore(location, duel.shard_id).read_latest()
    assert manifest is not None
    assert manifest.sstables
    assert all(
        SsTableReader(location, duel.shard_id, sstable).stored.data_file is not None for sstable in manifest.sstables
    )


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_keys_and_rows_are_found_in_cold_generations_of_both_and_in_their_roll_up(shape: Shape, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, shape.storage[-1], base_rows=0)
    for number in range(8):
        with duel.ours() if number % 4 == 3 else duel.peer() as writer:
            duel.put(writer, [0, 10 * number + 1, 10 * number + 2], number)
            if number == 6:
                duel.delete(writer, [21])
    read: list[str] = []
    CACHE.clear()
    table = watched_table(duel.uri, lambda kind, path: read.append(path.rpartition("/")[2]))
    key = [tuple(shape.row(i, 0)[name] for name in shape.keys) for i in (0, 1, 22, 41, 72, 21, 99)]
    found = [table.get(one if len(one) > 1 else one[0]) for one in key]
    assert found[-2:] == [None, None]
    expected = [duel.model[one] for one in key[:-2]]
    assert in_order(pa.Table.from_pylist(found[:-2], schema=duel.schema)) == in_order(
        pa.Table.from_pylist(expected, schema=duel.schema)
    )
    types = [duel.schema.field(name).type for name in shape.keys]
    assert read.count("bloom_filter.bin") == (8 if hash_is_exact(types) else 0), "one each, and kept"
    assert len(roll_up_all(duel.uri)) == 1
    CACHE.clear()
    table = mw.open_table(duel.uri)
    assert table.count_rows() == len(duel.model)
    assert in_order(table.scan().to_table()) == duel.rows
    CACHE.clear()
    assert [table.get(one if len(one) > 1 else one[0]) for one in key] == found
    assert table.verify().problems == []
    assert duel.peer_rows() == duel.rows
    table.compact()
    assert in_order(lance.dataset(duel.uri).to_table()) == duel.rows
