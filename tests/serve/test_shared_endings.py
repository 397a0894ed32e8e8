"""Shared shards that are closed, aborted or parked while others use them: nobody owns or serves them afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.process.turns import Turn
from lance_memwal.serve.caller import RemoteShard
from lance_memwal.serve.channel import OwnerLostError, SlowOwnerError
from lance_memwal.serve.record import OwnerRecords
from lance_memwal.write import life
from lance_memwal.write.health import Health
from tests.harness.points import run_once_at
from tests.harness.profile import scaled
from tests.kit.interrupts import SignalInterrupter, interrupted_everywhere
from tests.kit.writers import SECONDS, Running, in_thread

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@pytest.fixture(autouse=True)
def _no_point_is_left() -> Iterator[None]:
    yield
    crash_points.install(None)


def new_table(path: Path, **options: Any) -> mw.Table:
    return mw.create_table(str(path), SCHEMA, primary_key="id", writer_defaults={"fsync": False}, **options)


def owner_records(table: mw.Table) -> list[str]:
    return [path.name for path in Path(table.uri).glob("_mem_wal/*/memwal_owner_*.json")]


def beside(call: Callable[[], Any]) -> tuple[Callable[[], None], list[Running]]:
    """Begins `call` in another thread, and goes on when it is done, or waits for us."""
    begun: list[Running] = []

    def begin() -> None:
        begun.append(in_thread(call))
        begun[0].wait(0.5)

    return begin, begun


@pytest.mark.parametrize("point", ["serve.announced", "serve.claimed"])
@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_writer_that_ends_beside_its_first_claim_leaves_nothing_owned(
    tmp_path: Path, point: str, ending: str
) -> None:
    table = new_table(tmp_path / "t")
    writer = table.writer(shared=True)
    begin, begun = beside(getattr(writer, ending))
    assert run_once_at(point, begin) == []
    with pytest.raises(mw.ClosedError):
        writer.put([{"id": 1, "v": "a"}])
    begun[0].result()
    with table.writer(shared=True) as other:
        assert other.put([{"id": 2, "v": "b"}]).written == 1
        assert len(other.owned_shards) == 1, "nobody else answers for the shard"
    assert owner_records(table) == []
    assert table.scan().to_table().to_pylist() == [{"id": 2, "v": "b"}]


def test_a_close_beside_a_shard_that_is_taken_up_again_flushes_what_was_parked(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", sharding=mw.Bucket("id", 8))
    writer = table.writer(shared=True, max_open_shards=1)
    parked = run_once_at("park.before_stop", lambda: None)
    key = 0
    while not parked:
        writer.put([{"id": key, "v": "a"}])
        key += 1
    begin, begun = beside(writer.close)
    run_once_at("serve.claimed", begin)
    with pytest.raises(mw.ClosedError):
        writer.put([{"id": 0, "v": "b"}])
    begun[0].result()
    assert owner_records(table) == []
    assert not mw.open_table(table.uri).compact().in_log_only
    assert table.count_rows() == key


def test_a_put_that_comes_to_a_shard_which_is_taken_up_beside_a_close_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry was on its way while the close opened the parked shard once more, and flushed without it."""
    table = new_table(tmp_path / "t", sharding=mw.Bucket("id", 8))
    owner, client = table.writer(shared=True, max_open_shards=2), table.writer(shared=True)
    owner.put([{"id": 0, "v": "first"}])
    client.put([{"id": 0, "v": "by client"}])  # which knows the owner from now on
    parked, key = run_once_at("park.before_stop", lambda: None), 1
    while not parked:
        owner.put([{"id": key, "v": "x"}])
        key += 1
    on_its_way, goes_on, begun = threading.Event(), threading.Event(), []

    def held() -> None:
        on_its_way.set()
        goes_on.wait(SECONDS)

    remove, park, replay = OwnerRecords.remove_below, mw.ShardWriter.park, life.replay

    def beside_both(records: OwnerRecords, epoch: int) -> None:
        if not begun:
            run_once_at("wal.before_put", held)
            begun.append(in_thread(lambda: client.put([{"id": 0, "v": "acknowledged"}])))
            assert on_its_way.wait(SECONDS)
            begun.append(in_thread(owner.close))
            begun[1].wait(0.3)  # it waits for us
        remove(records, epoch)

    def parks(writer: mw.ShardWriter) -> Any:
        if on_its_way.is_set():
            goes_on.set()
        return park(writer)

    def replayed(*given: Any) -> Any:
        done = replay(*given)
        if on_its_way.is_set():
            goes_on.set()
            begun[0].wait(5)
        return done

    monkeypatch.setattr(OwnerRecords, "remove_below", beside_both)
    monkeypatch.setattr(mw.ShardWriter, "park", parks)
    monkeypatch.setattr(life, "replay", replayed)
    with pytest.raises(mw.ClosedError):
        owner.put([{"id": 0, "v": "second"}])
    assert begun[0].result().written == 1
    begun[1].result()
    client.abort()
    assert mw.open_table(table.uri).get(0) == {"id": 0, "v": "acknowledged"}
    assert table.verify().ok


def test_a_put_that_meets_a_shard_as_it_is_parked_goes_to_the_writer_that_takes_it_up(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", sharding=mw.Bucket("id", 8))
    writer = table.writer(shared=True, max_open_shards=1)
    writer.put([{"id": 1, "v": "a"}])
    [first] = writer.owned_shards
    begin, begun = beside(lambda: writer.put([{"id": 1, "v": "again"}]))
    parked = run_once_at("park.before_stop", begin)
    key = 2
    while not parked:  # until a row of another shard parks the first one
        writer.put([{"id": key, "v": "b"}])
        key += 1
    assert begun[0].result().written == 1
    writer.close()
    assert owner_records(table) == []
    epochs = {shard.shard_id: shard.epoch for shard in table.shards()}
    assert epochs[first] == 1, "it was taken up, not claimed again"
    assert table.get(1) == {"id": 1, "v": "again"}


@pytest.mark.scaled
def test_an_interrupt_anywhere_in_a_claim_leaves_a_shard_that_is_written_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_memwal.serve.shared_shard._CLAIM_SECONDS", 0.0)
    table = new_table(tmp_path / "t")
    parts = ("serve/shared_shard.py", "serve/office.py", "serve/desk.py", "serve/runtime.py", "process/turns.py")
    at, lines, step = 1, 0, scaled(ci=7, prove=1)
    while not lines:
        writer, interrupter = table.writer(shared=True), SignalInterrupter(at, *parts)
        if not interrupter.run(lambda writer=writer: writer.put([{"id": 1, "v": "a"}])):
            lines = interrupter.lines
        put = in_thread(lambda writer=writer: writer.put([{"id": 2, "v": "b"}]))
        assert put.result().written == 1, interrupter.where
        writer.close()
        assert owner_records(table) == [], interrupter.where
        at += step
    assert lines > 60


def test_a_flush_that_fails_is_told_by_the_writer_that_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for one that needs more time, and asked again and again without a pause."""
    writer = new_table(tmp_path / "t").writer(shared=True, compaction=None)
    writer.put([{"id": 1, "v": "a"}])
    waits, wait = [], Health.wait_until

    def counted(*given: Any, **options: Any) -> bool:
        waits.append(given)
        return wait(*given, **options)

    def failing(*_: Any, **__: Any) -> None:
        raise mw.UnavailableError("no manifests today", ambiguous=False)

    monkeypatch.setattr(ShardManifestStore, "commit_update", failing)
    monkeypatch.setattr(Health, "wait_until", counted)
    with pytest.raises(mw.UnavailableError, match="no manifests today"):
        writer.flush(timeout=SECONDS)
    assert len(waits) < 10
    writer.abort()


def test_a_write_whose_owner_was_lost_is_unknown_although_others_look_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_memwal.serve.shared_shard.TURN_SECONDS", 0.1)
    table = new_table(tmp_path / "t")
    looks, ends = threading.Event(), threading.Event()
    with table.writer(shared=True) as owner, table.writer(shared=True) as client:
        owner.put([{"id": 1, "v": "a"}])
        client.put([{"id": 2, "v": "b"}])
        [shard] = client._shards.open.values()
        perform = RemoteShard.perform

        def looked_for() -> None:
            with shard._turn.taken(SECONDS):
                looks.set()
                assert ends.wait(SECONDS)

        def lost(*given: Any) -> None:
            perform(*given)
            in_thread(looked_for)
            assert looks.wait(SECONDS)
            raise OwnerLostError("the owner ended the exchange")

        monkeypatch.setattr(RemoteShard, "perform", lost)
        with pytest.raises(mw.UnavailableError, match="looks for the owner") as told:
            client.put([{"id": 3, "v": "c"}])
        ends.set()
        assert told.value.ambiguous
        assert table.get(3) == {"id": 3, "v": "c"}


def test_a_write_that_a_slow_owner_may_have_done_is_unknown_once_it_is_none_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, once = new_table(tmp_path / "t"), RemoteShard._once
    with table.writer(shared=True) as owner, table.writer(shared=True) as client:
        owner.put([{"id": 1, "v": "a"}])
        client.put([{"id": 2, "v": "b"}])
        asked: list[int] = []

        def slow_then_fenced(way: RemoteShard, *given: Any) -> Any:
            asked.append(given[-1])
            if len(asked) == 1:
                once(way, *given)
                raise SlowOwnerError("the owner did not answer in time")
            client.abort()  # by another thread, meanwhile
            raise mw.FencedError(1, 2)

        monkeypatch.setattr(RemoteShard, "_once", slow_then_fenced)
        with pytest.raises(mw.UnavailableError) as told:
            client.put([{"id": 3, "v": "c"}])
        assert told.value.ambiguous
        assert table.get(3) == {"id": 3, "v": "c"}


def test_an_interrupt_anywhere_in_a_question_leaves_every_way_to_the_owner_free(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    with table.writer(shared=True) as owner, table.writer(shared=True) as client:
        owner.put([{"id": 1, "v": "a"}])
        client.put([{"id": 2, "v": "b"}])
        [shard] = client._shards.open.values()
        channel = shard._way._channel

        def check(where: str) -> None:
            taken = [in_thread(lambda turn=turn: turn.taken(0.0).__enter__()) for turn in channel._turns]
            for turn in taken:
                turn.result()  # which raises if somebody has it
            channel._turns = tuple(Turn() for _ in taken)
            assert not channel._inside, where
            assert client.put([{"id": 4, "v": "d"}]).written == 1  # and an exchange is there for the next one

        places = interrupted_everywhere(lambda: client.put([{"id": 3, "v": "c"}]), check, "serve/channel.py")
        assert places > 10
