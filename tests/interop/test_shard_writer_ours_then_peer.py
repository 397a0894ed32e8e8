"""What our writer leaves behind, pylance scans, looks up, replays, takes over and goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal import FencedError
from tests.kit.interop_tables import CASES, NAMES, SHAPES, Duel, Shape, in_order

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
        assert in_order(ours.scan().to_table()) == [row for row in shown if row in duel.of([1, 2])]
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
