"""Generations of pylance's writer and of ours, with columns of every kind, end as the same rows of the base table."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.store.location import resolve
from tests.kit.interop_tables import APPEND, CASES, NAMES, SHAPES, Duel, Shape, in_order

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
    assert all(SsTableReader(location, duel.shard_id, sstable).data_file is not None for sstable in manifest.sstables)
