"""Many processes, one table: whoever owns it may die at any moment, and nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.epochs import IDLE_SECONDS
from lance_memwal.serve.record import OwnerRecords
from tests.harness.points import run_once_at
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.kit.writers import SECONDS, in_thread, wait_for
from tests.serve.shared_child import append_ids, die_before_answers, own_and_put

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def new_table(path: Path, key: str | None = None) -> mw.Table:
    return mw.create_table(str(path), SCHEMA, primary_key=key, writer_defaults={"fsync": False})


def owner_pid(table: mw.Table) -> int | None:
    """The process that owns the only shard of the table."""
    shards = table.shards()
    if not shards:
        return None
    owner = OwnerRecords(table.location, shards[0].shard_id).find(shards[0].epoch)
    return None if owner is None else owner.pid


def ids(table: mw.Table) -> Counter[int]:
    return Counter(table.scan(columns=["id"]).to_table().column("id").to_pylist())


def acknowledged(directory: Path) -> Counter[int]:
    """The ids that the processes wrote down once their puts had returned."""
    return Counter(int(line) for path in directory.glob("acks-*") for line in path.read_text().split("\n")[:-1])


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=120, prove=1200))
def test_kills_of_the_owner_lose_and_double_nothing(tmp_path: Path) -> None:
    """Processes x threads append ids; the owner is killed again and again, and another process takes its place."""
    table = new_table(tmp_path / "t")
    processes, threads = scaled(ci=3, prove=4), scaled(ci=3, prove=8)
    wanted, every = scaled(ci=4, prove=100), 1.0
    names, children, kills, stop = iter(range(10_000)), {}, 0, tmp_path / "stop"

    def begin() -> None:
        name = next(names)
        child = start(append_ids, table.uri, str(tmp_path / f"acks-{name}"), name, threads, str(stop))
        children[child.pid] = child

    for _ in range(processes):
        begin()
    wait_for(lambda: owner_pid(table) is not None)
    while kills < wanted:
        time.sleep(every)
        child = children.pop(owner_pid(table) or 0, None)
        if child is not None:
            child.kill()
            kills += 1
            begin()
    tried = len(acknowledged(tmp_path))
    wait_for(lambda: len(acknowledged(tmp_path)) > tried + 10 * wanted)  # whoever took over last serves all
    stop.touch()
    for child in children.values():
        done = child.receive(60)
        assert done is not None
        assert done[1] == [], "a put of a process that lives failed"
        assert child.receive(60) == ("closed",)
    acked, found = acknowledged(tmp_path), ids(table)
    print(f"kills={kills} acknowledged={len(acked)} rows={len(found)} epochs={table.shards()[0].epoch}")
    assert not acked - found, "acknowledged rows are lost"
    assert max(found.values()) == 1, "rows are doubled"
    assert table.verify().ok
    assert len(list(tmp_path.glob("t/_mem_wal/*/memwal_owner_*.json"))) <= 1


def test_a_put_whose_answer_was_lost_is_not_written_twice(tmp_path: Path) -> None:
    """The owner dies after the commit and before the answer."""
    table, marker = new_table(tmp_path / "t"), tmp_path / "now"
    child = start(die_before_answers, table.uri, str(marker), None)
    assert child.receive(SECONDS) == ("owned",)
    with table.writer(shared=True) as writer:
        writer.put([{"id": 1, "v": "a"}])
        assert writer.owned_shards == set()
        marker.touch()
        result = writer.put([{"id": 2, "v": "b"}, {"id": 3, "v": "b"}])
        assert (result.written, result.skipped) == (2, False), "the attempt before wrote it"
        assert len(writer.owned_shards) == 1, "nobody else was there to take over"
        assert writer.put([{"id": 4, "v": "c"}]).written == 1
    assert ids(table) == Counter({0: 1, 1: 1, 2: 1, 3: 1, 4: 1})


@pytest.mark.parametrize("ends", ["no look", "closed"])
def test_a_write_whose_owner_was_lost_is_never_called_undone(tmp_path: Path, ends: str) -> None:
    """The owner dies between the commit and the answer, and no successor is found: the outcome is unknown."""
    table, marker, hidden = new_table(tmp_path / "t"), tmp_path / "now", tmp_path / "hidden"
    child = start(die_before_answers, table.uri, str(marker), str(hidden) if ends == "no look" else None)
    assert child.receive(SECONDS) == ("owned",)
    writer = table.writer(shared=True)
    writer.put([{"id": 1, "v": "a"}])
    marker.touch()
    if ends == "closed":
        run_once_at("serve.announced", writer.abort)
    try:
        with pytest.raises(mw.UnavailableError) as told:
            writer.put([{"id": 2, "v": "b"}])
    finally:
        crash_points.install(None)
    assert told.value.ambiguous
    writer.abort()
    child.wait(20)
    for path in (tmp_path / "t" / "_mem_wal").iterdir() if ends == "no look" else ():
        path.unlink()
        hidden.rename(path)
    assert ids(table) == Counter({0: 1, 1: 1, 2: 1}), "it was written"


def test_an_owner_that_was_only_slow_acknowledges_nothing_after_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, another process takes over, it goes on: its next put goes to the new owner."""
    for name in ("ANSWER_SECONDS", "_HELLO_SECONDS"):
        monkeypatch.setattr(f"lance_memwal.serve.channel.{name}", 0.5)
    table = new_table(tmp_path / "t")
    child = start(own_and_put, table.uri, [{"id": 1, "v": "slow"}], {})
    told = child.receive(SECONDS)
    assert told is not None
    assert told[0] == "owned"
    [shard] = told[1]
    with table.writer(shared=True) as writer:
        writer.put([{"id": 2, "v": "a"}])
        os.kill(child.pid, signal.SIGSTOP)
        child.wait_until_stopped(10)
        in_thread(lambda: writer.put([{"id": 3, "v": "a"}])).result(IDLE_SECONDS / 2)
        assert writer.owned_shards == {shard}
        child.resume()
        os.kill(child.pid, signal.SIGUSR1)
        assert child.receive(SECONDS) == ("put", []), "it is the owner no more, and its put went to the one that is"
        assert writer.stats()[shard].put_count >= 2
    child.kill()
    assert ids(table) == Counter({1: 1, 2: 1, 3: 1, 1001: 1})


def test_the_last_process_may_come_back_after_all_are_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead owner is noticed at once: nobody waits for an answer of it, nor until its epoch is idle."""
    for name in ("ANSWER_SECONDS", "_HELLO_SECONDS"):
        monkeypatch.setattr(f"lance_memwal.serve.channel.{name}", IDLE_SECONDS)
    table = new_table(tmp_path / "t", "id")
    child = start(own_and_put, table.uri, [{"id": 1, "v": "a"}], {})
    assert child.receive(SECONDS) is not None
    child.kill()
    child.wait(10)
    with table.writer(shared=True) as writer:
        in_thread(lambda: writer.put([{"id": 2, "v": "b"}])).result(IDLE_SECONDS / 2)
        assert writer.get(1) == {"id": 1, "v": "a"}
