"""One shard that changes hands between our writer, pylance's and LanceDB's: each scans, replays, takes over and goes on
with what the other left.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import FencedError, ShardWriter
from tests.harness.profile import scaled
from tests.harness.shard_audit import ShardAudit
from tests.kit.interop_tables import APPEND, CASES, NAMES, SHAPES, Duel, Shape, in_order
from tests.kit.systems import CannotError, Lancedb, Ours, Pylance, System, indexed_table, rows_for

CHOSEN = [shape for shape in SHAPES if shape.name in {"scalars", "lists", "composite key", "dropped column"}]
STORAGE = ("2.0", "2.1", "2.2")


@pytest.mark.scaled
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("shape", CHOSEN, ids=[shape.name for shape in CHOSEN])
def test_shard_alternating_between_us_and_the_peer_keeps_rows(shape: Shape, storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    draw = random.Random(storage)
    # One limit for all: the peer refuses a generation that was written under a larger one than its own.
    limits = {"max_memtable_rows": draw.choice((6, 15, 1_000))}
    for turn in range(scaled(ci=6, prove=40)):
        if turn % 2:
            _peers_turn(duel, draw, turn, limits)
        else:
            _our_turn(duel, draw, turn, limits)
    with duel.ours() as last:
        assert duel.our_rows(last) == duel.rows
    assert duel.peer_rows() == duel.rows
    assert duel.stored_rows() == duel.rows
    assert ShardAudit(duel.uri, duel.shard_id).run() == []


def _our_turn(duel: Duel, draw: random.Random, turn: int, limits: dict[str, Any]) -> None:
    writer = duel.ours(**limits)
    assert duel.our_rows(writer) == duel.rows, f"turn {turn}: after our replay"
    duel.write_at_random(writer, draw, 12, turn * 100)
    assert duel.our_rows(writer) == duel.rows, f"turn {turn}: after our writes"
    draw.choice((writer.close, writer.abort))()


def _peers_turn(duel: Duel, draw: random.Random, turn: int, limits: dict[str, Any]) -> None:
    writer = duel.peer(**limits)
    if draw.random() < 0.5:  # its own reads miss memtables that rotate, so it is asked before it writes
        seen = in_order(writer.lsm_scanner().to_table().select(duel.schema.names))
        assert seen == duel.rows, f"turn {turn}: after the peer's replay"
    duel.write_at_random(writer, draw, 12, turn * 100)
    if draw.random() < 0.6:
        writer.close()


@pytest.mark.parametrize("storage", STORAGE)
def test_an_append_only_shard_that_changes_hands_counts_every_row_once(storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, APPEND, storage)
    for turn in range(6):
        numbers = [range(turn * 10 + i, turn * 10 + i + 2) for i in range(8)]
        if turn % 2:
            peer = duel.peer(max_memtable_rows=5)
            for some in numbers:
                duel.put(peer, some, turn)
            if turn % 3:
                peer.close()
        else:
            ours = duel.ours(max_memtable_rows=5)
            assert duel.our_rows(ours) == duel.rows
            for some in numbers:
                duel.put(ours, some, turn)
            assert duel.our_rows(ours) == duel.rows
            (ours.close if turn % 4 else ours.abort)()
    with duel.ours() as last:
        assert duel.our_rows(last) == duel.rows
    assert duel.stored_rows() == duel.rows


SMALL = {"max_memtable_rows": 9}
PLAIN = next(shape for shape in SHAPES if shape.name == "string key")


@pytest.mark.parametrize(("shape", "storage"), CASES, ids=NAMES)
def test_the_peer_scans_and_looks_up_what_we_closed(shape: Shape, storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    with duel.ours(**SMALL) as writer:
        duel.write_some(writer, 1)
        assert duel.our_rows(writer) == duel.rows
    assert duel.peer_rows() == duel.rows
    assert duel.stored_rows() == duel.rows
    assert duel.peer_lookups(range(12)) == duel.of(range(12))


@pytest.mark.parametrize(("shape", "storage"), CASES, ids=NAMES)
def test_the_peer_replays_and_goes_on_with_what_we_left_in_the_log(shape: Shape, storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    ours = duel.ours()
    duel.write_some(ours, 1)
    ours.abort()
    peer = duel.peer()
    assert in_order(peer.lsm_scanner().to_table().select(duel.schema.names)) == duel.rows
    duel.write_some(peer, 5)
    peer.close()
    assert duel.peer_rows() == duel.rows
    with duel.ours() as again:
        assert duel.our_rows(again) == duel.rows


@pytest.mark.parametrize(("shape", "storage"), CASES, ids=NAMES)
def test_the_peer_replays_generations_that_we_never_flushed(shape: Shape, storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    log_only = duel.ours(enable_memtable=False, **SMALL)
    duel.write_some(log_only, 1)
    duel.write_some(log_only, 4)
    log_only.close()
    with duel.peer() as peer:
        assert peer.memtable_stats()["generation"] > 2
    assert duel.peer_rows() == duel.rows


def test_our_writer_is_fenced_by_the_peer(tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    ours = duel.ours()
    duel.put(ours, [1, 2], 1)
    shown = duel.our_rows(ours)
    with duel.peer() as peer:
        with pytest.raises(FencedError) as fenced:
            ours.put(duel.table([3], 2))
        assert fenced.value.current_epoch == ours.epoch + 1
        with pytest.raises(FencedError):
            ours.force_seal_active()
        assert in_order(ours.memtable_scanner().to_table()) == [row for row in shown if row in duel.of([1, 2])]
        duel.put(peer, [4], 3)
    with pytest.raises(FencedError):
        ours.close()
    assert duel.peer_rows() == duel.rows


def test_the_peer_takes_a_put_of_ours_that_is_larger_than_its_memtable(tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    ours = duel.ours()
    duel.put(ours, [1], 1)
    duel.put(ours, range(120_000), 2)
    ours.abort()
    with duel.peer() as peer:
        assert peer.lsm_scanner().count_rows() == len(duel.model) == 120_000
    assert len(duel.peer_rows()) == 120_000


def test_the_peer_replays_more_of_our_puts_than_its_memtable_holds_batches(tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    ours = duel.ours(enable_memtable=False, durable_write=False)
    for _ in range(161):
        ours.put([batch for i in range(50) for batch in duel.table([i], 1).to_batches()])
    duel.put(ours, range(50), 1)
    ours.close()
    with duel.peer() as peer:
        assert in_order(peer.lsm_scanner().to_table()) == duel.rows
    assert duel.peer_rows() == duel.rows


def test_the_peer_reads_transactions_and_generations_that_never_were_in_the_log(tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    ours = duel.ours(max_entry_bytes=4_000)
    for version in (1, 2):
        ours.put(duel.table([1, 2], version), txn=("app", version))
    duel.put(ours, [1, 2], 2)
    duel.put(ours, range(500), 3)
    ours.put(duel.table([7], 4), txn=("app", 3))
    duel.put(ours, [7], 4)
    ours.abort()
    peer = duel.peer()
    assert in_order(peer.lsm_scanner().to_table()) == duel.rows
    duel.put(peer, [8], 5)
    peer.close()
    again = duel.ours()
    assert duel.our_rows(again) == duel.rows
    assert again.put(duel.table([9], 6), txn=("app", 3)).skipped, "the peer's entries carry no map: look further back"
    again.close()
    assert duel.peer_rows() == duel.rows


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


# Who wrote, who reads, who compacts, who maintains: the same rows and the same best answers at every stage.
#
# {ours, pylance, LanceDB} write and take the shard over from each other; then every system reads, searches by vector
# and by text, before the flush, after it, after a compaction by ours or by pylance, after upkeep by each, and after
# collection. What a system cannot do is named by it (`tests.kit.systems`), and collected here: the list is part of
# the test.
#
# Not in the list, because no format has it: rows that are only in a log are seen by their own writer and by ours,
# which reads logs. The other two see them after the flush.

SYSTEMS: dict[str, type[System]] = {"ours": Ours, "pylance": Pylance, "lancedb": Lancedb}
FRESH = range(1_000, 1_006)
UPDATED = range(5, 8)
CANNOT = {
    ("pylance", "matching"): "no text search over SSTables",
    ("pylance", "nearest"): "no memtable",
    ("lancedb", "compact"): "on its service only",
}


class MatrixLife:
    """One table, what it must hold, and what every system finds in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.table = indexed_table(place)
        self.model = dict(zip(range(300), rows_for(range(300))["t"].to_pylist(), strict=True))
        self.written: list[pa.Table] = []

    def write(self, name: str, system: System, seed: int, numbers: range) -> None:
        rows = rows_for(numbers, seed)
        self.attempt(name, "write", lambda: system.write(rows))
        self.written.append(rows)
        self.model |= dict(zip(rows["id"].to_pylist(), rows["t"].to_pylist(), strict=True))

    def attempt(self, name: str, verb: str, call: Callable[[], object]) -> object:
        """What `call` returns; None if the system says that it cannot, for the reason that is listed."""
        try:
            return call()
        except CannotError as error:
            reason = str(error)
        assert CANNOT[name, verb] in reason
        return None

    def check(self, stage: str, systems: dict[str, System]) -> None:
        """Each of `systems` sees every row, and finds each row that was written last by its vector and its word."""
        latest = {row["id"]: row for rows in self.written for row in rows.to_pylist()}
        for name, system in systems.items():
            assert system.rows() == self.model, (stage, name)
            for number, row in latest.items():
                word = row["t"].split()[0]
                found = self.attempt(name, "nearest", lambda system=system, row=row: system.nearest(row["v"]))
                assert found in (number, None), (stage, name, "nearest", number)
                found = self.attempt(name, "matching", lambda system=system, word=word: system.matching(word))
                assert found in (number, None), (stage, name, "matching", number)


@pytest.mark.parametrize("first", SYSTEMS)
@pytest.mark.parametrize("second", SYSTEMS)
def test_every_system_finds_every_row_at_every_stage(tmp_path: Path, first: str, second: str) -> None:
    life = MatrixLife(tmp_path)
    systems = {name: system(tmp_path) for name, system in SYSTEMS.items()}
    life.write(first, systems[first], 1, FRESH)
    life.check("before the flush", {name: systems[name] for name in {first, "ours"}})
    if second != first:
        systems[first].end_writing()
        life.write(second, systems[second], 2, UPDATED)  # takes the shard over
        life.check("after the takeover", {name: systems[name] for name in {second, "ours"}})
    for name in (second, first):
        systems[name].end_writing()
    life.check("after the flush", systems)
    life.attempt(second, "compact", systems[second].compact)
    life.check("after compaction by the second", systems)
    systems["ours"].compact()
    life.check("after compaction by ours", systems)
    life.table.gc(grace_seconds=0)
    life.check("after collection", systems)
    systems[first].maintain()
    life.check("after upkeep by the first", systems)
    systems["ours"].maintain()
    life.check("after upkeep by ours", systems)
    assert [shard.generations for shard in mw.open_table(life.table.uri).shards()] == [()]
