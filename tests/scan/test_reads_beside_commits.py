"""What a read holds does not move: neither by a compaction of the same process nor by what users commit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.compact.run import Compactor
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.base_rows import BaseLookup
from lance_memwal.read.lookup import lookup_rows
from lance_memwal.read.tiers import TierSource
from lance_memwal.store.location import resolve

PLAIN = pa.schema([("id", pa.int64()), ("note", pa.string())])
KEY = pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"})
KEYED = pa.schema([KEY, ("note", pa.string())])


def _index_the_key(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("id", "BTREE")


def _nothing(_: str) -> None:
    return None


WAYS: dict[str, tuple[pa.Schema, list[int], dict[str, Any], Callable[[str], None]]] = {
    "by hand": (KEYED, [1, 2, 3], {}, _nothing),
    "index on the key": (KEYED, [1, 2, 3], {}, _index_the_key),
    "stable row ids": (KEYED, [1, 2, 3], {"enable_stable_row_ids": True}, _nothing),
    "old manifest names": (KEYED, [1, 2, 3], {"enable_v2_manifest_paths": False}, _nothing),
    "append-only, stable row ids": (PLAIN, [1, 2, 3], {"enable_stable_row_ids": True}, _nothing),
    "append-only, stable row ids, empty": (PLAIN, [], {"enable_stable_row_ids": True}, _nothing),
}


def _table(place: Path, way: str) -> mw.Table:
    schema, ids, options, prepare = WAYS[way]
    uri = str(place)
    lance.write_dataset(pa.table([ids, ["base"] * len(ids)], schema=schema), uri, **options)
    prepare(uri)
    return mw.enable(uri, sharding=mw.Unsharded(), writer_defaults={"fsync": False})


def _rows(scan: Any) -> list[tuple[int, str]]:
    return sorted((row["id"], row["note"]) for row in scan.to_table().to_pylist())


@pytest.mark.repro("reads-02")
@pytest.mark.parametrize("way", WAYS)
def test_a_held_scan_shows_what_it_captured_whatever_is_compacted(tmp_path: Path, way: str) -> None:
    table = _table(tmp_path / "t", way)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 100, "note": "first"}])
        writer.flush()
        held = table.scan()
        wanted = _rows(table.scan())
        writer.put([{"id": 1, "note": "second"}, {"id": 101, "note": "second"}])
        if table.primary_key:
            writer.delete([2])
        writer.flush()
        table.compact()
        assert _rows(held) == wanted
        assert held.count_rows() == len(wanted)
        assert _rows(table.scan()) != wanted


@pytest.mark.repro("reads-02b")
@pytest.mark.parametrize("way", [way for way, (schema, ids, *_) in WAYS.items() if schema is KEYED and ids])
def test_a_read_that_a_compaction_overtakes_between_two_batches_is_not_torn(tmp_path: Path, way: str) -> None:
    """Names move from row to row, two at a time: each state has every name once, a mixture has not."""
    schema, _, options, prepare = WAYS[way]
    uri, count = str(tmp_path / "t"), 300
    names = [f"name {number}" for number in range(count)]
    lance.write_dataset(pa.table([range(count), names], schema=schema), uri, max_rows_per_file=count // 6, **options)
    prepare(uri)
    table = mw.enable(uri, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:

        def exchange(first: int, last: int) -> None:
            names[first], names[last] = names[last], names[first]
            writer.put([{"id": number, "note": names[number]} for number in (first, last)])
            writer.flush()

        for turn in range(1, 7):
            exchange(turn, 100 + turn)  # fresh rows come first, so that the base is not begun when the next ones come
            batches = table.scan(["note"]).to_batches()
            seen = [next(batches)]
            for partner in (turn, 100 + turn):
                exchange(count - turn, partner)
                table.compact()
                seen.extend(islice(batches, 2))
            seen.extend(batches)
            assert len(seen) > 3, "the compactions came in the middle"
            assert sorted(pa.Table.from_batches(seen)["note"].to_pylist()) == sorted(names)
            assert sorted(table.lookup(list(range(count)))["note"].to_pylist()) == sorted(names)


@pytest.mark.repro("reads-02c")
@pytest.mark.parametrize("way", [way for way, (schema, *_) in WAYS.items() if schema is KEYED])
def test_a_lookup_finds_every_row_of_its_snapshot_while_its_process_compacts(tmp_path: Path, way: str) -> None:
    table = _table(tmp_path / "t", way)
    newest = BaseTable.open(resolve(table.uri))
    assert newest is not None
    base = NewestBase(newest)
    source, lookup = TierSource(base), BaseLookup()
    keys = pa.record_batch([pa.array([1, 2, 3])], names=["id"])
    with table.writer(compaction=None) as writer:
        for _ in range(12):  # enough for an index of key hashes
            lookup_rows(source.capture(), lookup, keys, ["id"])
        snapshot = source.capture()
        writer.put([{"id": 1, "note": "new"}])
        writer.flush()
        Compactor(newest.location, base).run()
        found = lookup_rows(snapshot, lookup, keys, ["id", "note"]).to_pylist()
    assert sorted(row["id"] for row in found) == [1, 2, 3]
    assert {row["note"] for row in found} == {"base"}


@pytest.mark.repro("reads-02")
@pytest.mark.parametrize(
    "move",
    [
        lambda dataset: dataset.delete("id = 1"),
        lambda dataset: dataset.update({"note": "'other'"}),
        lambda dataset: (
            dataset.merge_insert("id").when_matched_update_all().execute(pa.table([[1], ["merged"]], schema=KEYED))
        ),
        lambda dataset: dataset.add_columns(pa.field("more", pa.int64())),
        lambda dataset: dataset.optimize.compact_files(),
    ],
    ids=["delete", "update", "merge_insert", "add_columns", "compact_files"],
)
def test_what_a_user_commits_through_the_dataset_of_a_table_moves_no_held_read(
    tmp_path: Path, move: Callable[[Any], object]
) -> None:
    table = _table(tmp_path / "t", "by hand")
    held = table.scan()
    wanted = _rows(table.scan())
    mine = table.dataset
    move(mine)
    assert _rows(held) == wanted
    assert table.dataset is not table.dataset
    assert table.scan().snapshot.base.version == lance.dataset(table.uri).version
