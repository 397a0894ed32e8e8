"""The life of a log on S3 and Azure, over the wire: claim, append, tail, take over, fence."""

from __future__ import annotations

import threading
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_memwal import CollectedError, CorruptDataError, FencedError, ShardManifestStore, WalAppender, WalTailer
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from tests.kit.logs import SCHEMA, SHARD, flushed, ids, read_all, rows, story

pytestmark = [
    pytest.mark.parametrize("service", ["s3_table", "azure_table"]),
    pytest.mark.xdist_group("services"),
]


@pytest.fixture
def table(service: str, request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    found: tuple[str, dict[str, str]] = request.getfixturevalue(service)
    return found


@pytest.fixture
def location(table: tuple[str, dict[str, str]]) -> Location:
    return resolve(*table)


def test_a_log_is_claimed_appended_tailed_taken_over_and_fenced(table: tuple[str, dict[str, str]]) -> None:
    uri, options = table
    first = WalAppender.open(uri, SHARD, storage_options=options)
    assert [first.append(rows(n), txn=("app", n) if n == 2 else None) for n in (1, 2, 3)] == [1, 2, 3]
    tailer = WalTailer(uri, SHARD, storage_options=options)
    assert (tailer.first_position(), tailer.next_position(), tailer.read_entry(4)) == (1, 4, None)
    second = WalAppender.open(uri, SHARD, storage_options=options)
    assert (second.epoch, second.next_position) == (2, 5)
    for _ in range(2):
        with pytest.raises(FencedError, match="Writer fenced"):
            first.append(rows(9))
    with pytest.raises(FencedError):
        first.check_fenced()
    assert [second.append(rows(4)), second.append(rows(2), txn=("app", 2))] == [5, 0]
    assert story(read_all(tailer.location)) == [
        (1, 1, [1]),
        (2, 1, [2]),
        (3, 1, [3]),
        (4, 2, "sentinel"),
        (5, 2, [4]),
    ]
    assert ShardManifestStore(uri, SHARD, storage_options=options).list_versions() == [1, 2]


def test_a_follower_sees_every_entry_in_order_while_it_is_written(location: Location) -> None:
    writer = WalAppender.open(location, SHARD)
    stop, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            for number in range(1, 16):
                writer.append(rows(number))
        except BaseException as error:
            failures.append(error)
            stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    met: list[tuple[int, list[int]]] = []
    for entry in WalTailer(location, SHARD).follow(poll_seconds=0.01, stop=stop):
        met.append((entry.position, ids(entry)))
        if len(met) == 15:
            stop.set()
    thread.join()
    assert failures == []
    assert met == [(number, [number]) for number in range(1, 16)]


def test_eight_racing_owners_get_eight_epochs_and_one_stays_alive(location: Location) -> None:
    start = threading.Barrier(8)
    opened: list[WalAppender] = []
    fenced: list[FencedError] = []
    failures: list[BaseException] = []

    def run() -> None:
        start.wait()
        try:
            opened.append(WalAppender.open(location, SHARD))
        except FencedError as error:
            fenced.append(error)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    epochs = [writer.epoch for writer in opened] + [error.our_epoch for error in fenced]
    assert len(set(epochs)) == 8
    alive = []
    for writer in opened:
        try:
            writer.append(rows(writer.epoch))
        except FencedError:
            continue
        alive.append(writer.epoch)
    assert alive == [max(writer.epoch for writer in opened)]
    entries = read_all(location)
    assert [entry.position for entry in entries] == list(range(1, len(entries) + 1))
    assert [ids(entry) for entry in entries if entry.batches] == [[alive[0]]]


def test_holes_damage_and_collected_positions_are_told_apart(location: Location) -> None:
    writer = WalAppender.open(location, SHARD)
    for number in range(1, 6):
        writer.append(rows(number))
    tailer = WalTailer(location, SHARD)
    location.store.delete(paths.wal_entry_path(SHARD, 3))
    with pytest.raises(CorruptDataError, match="missing"):
        tailer.read_entry(3)
    location.store.put(paths.wal_entry_path(SHARD, 3), b"")
    with pytest.raises(CorruptDataError) as error:
        tailer.read_entry(3)
    assert error.value.position == 3
    with pytest.raises(CorruptDataError):
        WalAppender.open(location, SHARD)
    flushed(location, 4)
    location.store.delete(paths.wal_entry_path(SHARD, 3))
    with pytest.raises(CollectedError):
        tailer.read_entry(3)
    assert tailer.first_position() == 4


def test_pylance_replays_what_was_appended_over_the_wire_and_fences_it(table: tuple[str, dict[str, str]]) -> None:
    uri, options = table
    lance.write_dataset(SCHEMA.empty_table(), uri, storage_options=options).initialize_mem_wal()
    writer = WalAppender.open(uri, SHARD, storage_options=options)
    writer.append([rows(1), rows(2, 3)])
    writer.append(pa.table({"id": [2], "_tombstone": [True]}))
    peer: Any = lance.dataset(uri, storage_options=options).mem_wal_writer(SHARD)
    assert sorted(peer.lsm_scanner().to_table().column("id").to_pylist()) == [1, 3]
    with pytest.raises(FencedError):
        writer.append(rows(4))
    peer.put(rows(5))
    again = WalAppender.open(uri, SHARD, storage_options=options)
    with pytest.raises(OSError, match="fenced"):
        peer.put(rows(6))
    with pytest.raises(OSError, match="fenced"):
        peer.close()
    assert again.append(rows(7)) > 0
    assert [ids(entry) for entry in read_all(resolve(uri, options)) if entry.batches] == [[1, 2, 3], [2], [5], [7]]
