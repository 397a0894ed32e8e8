"""Several processes write one table. Any of them may die, stop, fork or close at any time; nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.kit.writers import SECONDS, fork, in_thread, wait_for
from tests.shared.shared_child import (
    append_ids,
    create_at,
    die_at,
    end_with_queued_rows,
    increment,
    own_until_signal,
    put_applications,
    put_on_signal,
    serve_requests,
)

REFRESH_SECONDS = 1.5  # a writer checks the columns of a local table once a second
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def new_table(path: Path, key: str | None = "id", **options: Any) -> mw.Table:
    return mw.create_table(str(path), SCHEMA, primary_key=key, writer_defaults={"fsync": False}, **options)


def values(table: mw.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()}


def ids(table: mw.Table) -> Counter[int]:
    return Counter(table.scan(columns=["id"]).to_table().column("id").to_pylist())


def acknowledged(directory: Path) -> Counter[int]:
    """The ids that the processes wrote down after their puts had returned."""
    return Counter(int(line) for path in directory.glob("acks-*") for line in path.read_text().split("\n")[:-1])


def answer(child: Child) -> tuple[Any, ...]:
    found = child.receive(SECONDS)
    assert found is not None, "no answer"
    return found


def putting(table: mw.Table, *rows: dict[str, Any]) -> Child:
    """A process with an open shared writer that has put these rows."""
    child = start(put_on_signal, table.uri, list(rows))
    assert answer(child) == ("put",)
    return child


def test_four_workers_have_no_errors(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    workers = [start(serve_requests, table.uri, name, 15) for name in range(4)]
    assert [answer(worker) for worker in workers] == [([],)] * 4
    assert [worker.wait(30) for worker in workers] == [0] * 4
    assert table.count_rows() == 60
    assert table.verify().ok


@pytest.mark.scaled
@pytest.mark.parametrize("run", range(scaled(ci=3, prove=30)))
def test_workers_that_create_the_table_at_the_same_time_share_one_table(tmp_path: Path, run: int) -> None:
    uri, at_seconds = str(tmp_path / "t"), time.time() + 1
    workers = [start(create_at, uri, SCHEMA, at_seconds, key) for key in range(4)]
    assert [answer(worker) for worker in workers] == [("created",)] * 4
    assert ids(mw.open_table(uri)) == Counter(range(4))


def test_processes_append_in_one_epoch_and_leave_no_record_of_themselves(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    child = putting(table, {"id": 1, "v": "child"})
    with table.writer(shared=True) as writer:
        assert writer.get(1) == {"id": 1, "v": "child"}
        writer.put([{"id": 2, "v": "here"}])
        os.kill(child.pid, signal.SIGUSR1)
        assert answer(child) == ("put",)
        assert writer.get(1001) == {"id": 1001, "v": "child"}
        assert [shard.epoch for shard in table.shards()] == [1]
        names = {path.name for path in Path(table.uri).glob("_mem_wal/*/*")}
        assert names == {"wal", "manifest"}
    child.kill()


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=120, prove=1200))
def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    """Processes with several threads append ids. One of them is killed every half second, and another one starts."""
    table = new_table(tmp_path / "t", None)
    processes, threads, wanted = scaled(ci=3, prove=4), scaled(ci=2, prove=8), scaled(ci=6, prove=200)
    children: list[Child] = []
    stop = tmp_path / "stop"

    def begin(name: int) -> None:
        children.append(start(append_ids, table.uri, str(tmp_path / f"acks-{name}"), name, threads, str(stop)))

    for name in range(processes):
        begin(name)
    wait_for(lambda: bool(acknowledged(tmp_path)))
    for kill in range(wanted):
        time.sleep(0.5)
        children.pop(0).kill()
        begin(processes + kill)
    tried = len(acknowledged(tmp_path))
    wait_for(lambda: len(acknowledged(tmp_path)) > tried + 10 * processes)
    stop.touch()
    for child in children:
        assert answer(child) == ("done", []), "a put of a living process failed"
        assert answer(child) == ("closed",)
    acked, found = acknowledged(tmp_path), ids(table)
    print(f"kills={wanted} acknowledged={len(acked)} rows={len(found)}")
    assert not acked - found, "acknowledged rows are lost"
    assert max(found.values()) == 1, "rows are doubled"
    assert table.shards()[0].epoch <= processes, "only processes that start together claim the shard"
    assert table.verify().ok


def test_a_stopped_process_delays_no_other_one_and_writes_again_when_it_continues(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    child = putting(table, {"id": 1, "v": "child"})
    with table.writer(shared=True) as writer:
        writer.put([{"id": 2, "v": "a"}])
        child.stop()
        child.wait_until_stopped(10)
        for key in range(3, 23):
            in_thread(lambda key=key: writer.put([{"id": key, "v": "a"}])).result(10)
        writer.flush(SECONDS)
        child.resume()
        os.kill(child.pid, signal.SIGUSR1)
        assert answer(child) == ("put",)
    child.kill()
    assert values(table) == {1: "child", 1001: "child", **dict.fromkeys(range(2, 23), "a")}


def test_a_process_writes_at_once_after_all_others_were_killed(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    children = [putting(table, {"id": key, "v": "dead"}) for key in (1, 2)]
    for child in children:
        child.kill()
        child.wait(10)
    with table.writer(shared=True) as writer:
        in_thread(lambda: writer.put([{"id": 3, "v": "b"}])).result(10)
        assert writer.get(1) == {"id": 1, "v": "dead"}
    assert sorted(values(table)) == [1, 2, 3]
    assert [shard.epoch for shard in table.shards()] == [1]


@pytest.mark.parametrize(("point", "written"), [("once.before_put", 2), ("once.after_put", 0)])
def test_a_transaction_of_a_killed_process_is_repeated_by_another_one(tmp_path: Path, point: str, written: int) -> None:
    """The process dies before its create, or between the create and the answer. The repeat writes the missing rows only."""
    table, rows = new_table(tmp_path / "t", None), [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}]
    child = start(die_at, table.uri, point, rows, ("app", 1))
    assert answer(child) == ("ready",)
    assert child.wait(20) == -signal.SIGKILL
    with table.writer(shared=True) as writer:
        result = writer.put(rows, txn=("app", 1))
        assert (result.written, result.skipped) == (written, not written)
    assert ids(table) == Counter([0, 1, 2])


def test_a_transaction_of_several_processes_is_written_once(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", None)
    children = [start(put_applications, table.uri, 12, name) for name in range(3)]
    wrote = [number for child in children for number in answer(child)[0]]
    assert sorted(wrote) == list(range(1, 13))
    assert ids(table) == Counter(range(1, 13))


def test_compare_and_set_of_processes_loses_no_update(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    table.put([{"id": 0, "v": "0"}])
    table.close()
    children = [start(increment, table.uri, 10) for _ in range(3)]
    for child in children:
        answer(child)
    assert values(table) == {0: "30"}


def test_a_flush_of_one_process_publishes_the_rows_of_all(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", sharding=mw.Bucket("id", 2))
    child = putting(table, *({"id": key, "v": "child"} for key in range(10)))
    with table.writer(shared=True) as writer:
        writer.put([{"id": key, "v": "here"} for key in range(10, 20)])
        writer.flush(SECONDS)
        assert sum(sstable.physical_rows or 0 for m in manifests(table) for sstable in m.sstables) == 20
        os.kill(child.pid, signal.SIGUSR1)
        assert answer(child) == ("put",)
    child.kill()
    assert table.count_rows() == 30
    assert table.verify().ok


def manifests(table: mw.Table) -> list[Any]:
    found = [mw.ShardManifestStore(table.uri, shard.shard_id).read_latest() for shard in table.shards()]
    return [manifest for manifest in found if manifest is not None]


# ------------------------------------------------------------------------------------------------- exclusive writers


def test_shared_writers_wait_for_an_exclusive_writer_of_another_process_until_it_closes(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    owner = start(own_until_signal, table.uri)
    assert answer(owner) == ("put",)
    with table.writer(shared=True) as writer:
        waiting = in_thread(lambda: writer.put([{"id": 2, "v": "shared"}]))
        waiting.wait(1.0)
        assert waiting.running, "the exclusive writer was fenced, or its shard was shared"
        os.kill(owner.pid, signal.SIGUSR1)
        assert answer(owner) == ("closed",)
        assert waiting.result(SECONDS).written == 1
    owner.kill()
    assert values(table) == {1: "exclusive", 2: "shared"}


def test_an_exclusive_writer_keeps_the_rows_that_processes_shared(tmp_path: Path) -> None:
    """It claims at once. The shared writer waits for it, and writes again after it has closed (append R16)."""
    table = new_table(tmp_path / "t")
    child = putting(table, {"id": 1, "v": "child"})
    with table.writer() as exclusive:
        exclusive.put([{"id": 2, "v": "exclusive"}])
        assert values(table) == {1: "child", 2: "exclusive"}
        os.kill(child.pid, signal.SIGUSR1)
        assert child.receive(1.0) is None
    assert answer(child) == ("put",)
    child.kill()
    assert values(table) == {1: "child", 2: "exclusive", 1001: "child"}


# ------------------------------------------------------------------------------------------------- columns


def test_a_process_that_does_not_know_a_new_column_erases_no_value_of_it(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    child = putting(table, {"id": 1, "v": "child"})
    table.dataset.add_columns(pa.field("w", pa.int64()))
    time.sleep(REFRESH_SECONDS)
    with mw.open_table(table.uri).writer(shared=True) as writer:
        writer.put([{"id": 1001, "v": "new", "w": 5}])
        os.kill(child.pid, signal.SIGUSR1)
        kind, text = answer(child)
        assert kind == "InvalidInputError"
        assert "'w'" in text
        assert writer.get(1001) == {"id": 1001, "v": "new", "w": 5}
    child.kill()


# ------------------------------------------------------------------------------------------------- endings


@pytest.mark.parametrize(("ending", "keys"), [("close", {1, 2}), ("abort", {1})])
def test_the_end_of_a_writer_keeps_or_drops_its_queued_rows(tmp_path: Path, ending: str, keys: set[int]) -> None:
    table = new_table(tmp_path / "t")
    child = start(end_with_queued_rows, table.uri, ending)
    (durable,) = answer(child)
    assert child.wait(20) == 0
    assert durable is (ending == "close")
    with table.writer(shared=True) as writer:
        in_thread(lambda: writer.put([{"id": 3, "v": "next"}])).result(10)
    assert set(values(table)) == keys | {3}


def test_a_program_that_ends_without_a_close_hinders_no_other_process(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    child = start(end_with_queued_rows, table.uri, "program ends")
    answer(child)
    assert child.wait(20) == 0
    with table.writer(shared=True) as writer:
        in_thread(lambda: writer.put([{"id": 3, "v": "next"}])).result(10)
    assert set(values(table)) >= {1, 3}


def test_processes_that_close_disturb_no_process_that_writes(tmp_path: Path) -> None:
    table, stop = new_table(tmp_path / "t", None), tmp_path / "stop"
    child = start(append_ids, table.uri, str(tmp_path / "acks-1"), 1, 2, str(stop))
    wait_for(lambda: bool(acknowledged(tmp_path)))
    for key in range(8):
        writer = table.writer(shared=True)
        writer.put([{"id": key, "v": "here"}])
        writer.close() if key % 2 else writer.abort()
        with pytest.raises(mw.ClosedError):
            writer.put([{"id": -1, "v": "closed"}])
    stop.touch()
    assert answer(child) == ("done", [])
    assert answer(child) == ("closed",)
    assert ids(table) == acknowledged(tmp_path) + Counter(range(8))


# ------------------------------------------------------------------------------------------------- forks


def test_a_forked_child_cannot_use_the_writers_of_its_parent(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    with table.writer(shared=True) as one, table.writer(shared=True) as two:
        one.put([{"id": 1, "v": "a"}])
        two.put([{"id": 2, "v": "a"}])
        pid = fork()
        if pid == 0:
            status = 1
            try:
                for writer in (one, two):
                    try:
                        writer.put([{"id": 3, "v": "child"}])
                    except mw.ClosedError:
                        status += 3
            finally:
                os._exit(status)
        assert _status(pid) == 7
        one.put([{"id": 4, "v": "a"}])
        two.put([{"id": 5, "v": "a"}])
    assert set(values(table)) == {1, 2, 4, 5}


def test_a_forked_child_ends_as_programs_do(tmp_path: Path) -> None:
    """The child takes the whole interpreter down. It waits for no thread of its parent."""
    table = new_table(tmp_path / "t")
    program = f"""
import os, sys, warnings
import lance_memwal as mw
warnings.simplefilter("ignore")
writer = mw.open_table({table.uri!r}).writer(shared=True)
writer.put([{{"id": 1, "v": "a"}}])
writer.put_nowait([{{"id": 2, "v": "a"}}]).wait()
pid = os.fork()
if pid == 0:
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
writer.put([{{"id": 3, "v": "a"}}])
print(status, flush=True)  # no close: the program just ends
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
    assert table.count_rows() == 3


def _status(pid: int) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")
