"""What pylance's writer leaves behind, our writer reads, replays, takes over and goes on with."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_memwal import ShardWriter
from tests.kit.interop_tables import CASES, NAMES, SHAPES, Duel, Shape

SMALL = {"max_memtable_rows": 9}
PLAIN = next(shape for shape in SHAPES if shape.name == "string key")


@pytest.mark.parametrize(("shape", "storage"), CASES, ids=NAMES)
def test_we_read_what_the_peer_closed(shape: Shape, storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    with duel.peer(max_memtable_rows=12) as peer:
        duel.write_some(peer, 1)
    with duel.ours() as ours:
        assert ours.memtable_stats().row_count == 0
        assert duel.our_rows(ours) == duel.rows
        for i in range(12):
            found = ours.get(tuple(shape.row(i, 0)[name] for name in shape.keys))
            assert [found] == duel.of([i]) or (found is None and not duel.of([i]))


@pytest.mark.parametrize(("shape", "storage"), CASES, ids=NAMES)
def test_we_replay_and_go_on_with_what_the_peer_left_in_the_log(shape: Shape, storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    peer = duel.peer()
    duel.write_some(peer, 1)
    ours = duel.ours(**SMALL)
    assert duel.our_rows(ours) == duel.rows
    duel.write_some(ours, 5)
    assert duel.our_rows(ours) == duel.rows
    ours.close()
    assert duel.peer_rows() == duel.rows
    assert duel.peer_lookups(range(12)) == duel.of(range(12))
    with pytest.raises(OSError, match="fenced"):
        peer.close()


def test_the_peer_is_fenced_by_our_writer(tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    peer = duel.peer()
    duel.put(peer, [1, 2], 1)
    with duel.ours() as ours:
        with pytest.raises(OSError, match="fenced"):
            peer.put(duel.table([3], 2))
        duel.put(ours, [4], 3)
        with pytest.raises(OSError, match="fenced"):
            peer.put(duel.table([5], 4))
        assert duel.our_rows(ours) == duel.rows
    assert duel.peer_rows() == duel.rows


def test_we_replay_a_log_in_which_the_peer_grouped_and_rotated(tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    peer = duel.peer(durable_write=False, max_wal_buffer_size=2_000, max_memtable_rows=40, max_memtable_batches=10)
    for version in range(60):
        duel.put(peer, [version % 25, 30 + version % 7], version)
    peer.close()
    with duel.ours() as ours:
        assert duel.our_rows(ours) == duel.rows
    assert duel.peer_rows() == duel.rows


def test_settings_that_the_peer_stored_with_the_table_are_ours_too(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(PLAIN.schema.empty_table(), uri)
    dataset.initialize_mem_wal(durable_write=False, max_memtable_rows=77, max_wal_flush_interval_ms=9)
    with ShardWriter.open(uri) as writer:
        assert (writer.config.durable_write, writer.config.max_memtable_rows) == (False, 77)
        assert writer.config.max_wal_flush_interval_ms == 9
    with ShardWriter.open(uri, durable_write=True) as writer:
        assert (writer.config.durable_write, writer.config.max_memtable_rows) == (True, 77)


def test_a_null_among_the_dictionary_values_of_the_peer_is_a_null(tmp_path: Path) -> None:
    """Arrow cannot join such dictionaries: what the peer acknowledged could be neither read nor flushed."""
    duel = Duel(tmp_path, next(shape for shape in SHAPES if shape.name == "dictionary"))
    peer = duel.peer()
    kind = duel.schema.field("colour").type
    odd = pa.DictionaryArray.from_arrays(pa.array([1, 0], kind.index_type), pa.array(["pink", None]))
    duel.put(peer, [10], 1)
    peer.put(pa.table([[20, 21], odd, pa.array([1, 1], pa.int8())], schema=duel.schema))
    duel.put(peer, [11], 2)
    with duel.ours() as ours:
        assert {row["id"]: row["colour"] for row in duel.our_rows(ours) if row["id"] >= 20} == {20: None, 21: "pink"}
    assert {row["id"]: row["colour"] for row in duel.stored_rows() if row["id"] >= 20} == {20: None, 21: "pink"}
