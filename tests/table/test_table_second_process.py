"""Readers in other processes: every acknowledged row at once, and the writer never notices them."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.kit.tables import Outside, create, files_below, ids_of, manifest_of, outside, rows_of

TWO = mw.Bucket("id", 2)
ROUNDS = scaled(ci=60, prove=3_000)


@pytest.fixture(scope="module")
def reader() -> Any:
    with outside() as other:
        yield other


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_a_second_process_sees_each_acknowledged_row_at_once(tmp_path: Path, reader: Outside) -> None:
    """Through rotation, flushes and deletes of the writer, which goes on undisturbed."""
    table = create(str(tmp_path / "t"), sharding=TWO)
    shown: dict[int, dict[str, Any]] = {}
    with table.writer(max_memtable_rows=7, compaction=None) as writer:
        for i in range(ROUNDS):
            if i % 7 == 3:
                writer.delete([i % 5])
                shown.pop(i % 5, None)
            else:
                row = {"id": i % 23, "v": i, "s": f"s{i}"}
                writer.put([row])
                shown[row["id"]] = row
            key = i % 23
            assert reader.ask("get", table.uri, key) == shown.get(key), f"round {i}"
            if i % 4 == 0:
                assert rows_of(reader.ask("scan", table.uri)) == [shown[k] for k in sorted(shown)], f"round {i}"
            if i % 10 == 0:
                assert reader.ask("count_rows", table.uri) == len(shown)
        assert {shard.epoch for shard in table.shards()} == {1}
        for shard in writer.shard_writers.values():
            shard.check_fenced()
    assert rows_of(table.scan()) == [shown[k] for k in sorted(shown)]


def test_a_reader_claims_nothing_writes_nothing_and_fences_nobody(tmp_path: Path, reader: Outside) -> None:
    table = create(str(tmp_path / "t"), sharding=TWO)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": i, "v": i, "s": "x"} for i in range(10)])
        writer.flush()
        writer.put([{"id": i, "v": -i, "s": "y"} for i in range(5, 15)])
        before = files_below(table.uri)
        manifests = {shard.shard_id: manifest_of(table.uri, shard.shard_id) for shard in table.shards()}
        assert ids_of(reader.ask("scan", table.uri)) == list(range(15))
        assert reader.ask("get", table.uri, 7) == {"id": 7, "v": -7, "s": "y"}
        assert reader.ask("lookup", table.uri, [1, 12, 99]).num_rows == 2
        assert reader.ask("count_rows", table.uri, "v < 0") == 10
        assert len(reader.ask("shards", table.uri)) == 2
        assert files_below(table.uri) == before
        assert {shard_id: manifest_of(table.uri, shard_id) for shard_id in manifests} == manifests
        writer.put([{"id": 99, "v": 1, "s": "z"}])


def test_flushed_consistency_leaves_the_log_of_another_process_out(tmp_path: Path, reader: Outside) -> None:
    table = create(str(tmp_path / "t"), sharding=TWO)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x"}])
        writer.flush()
        writer.put([{"id": 2, "v": 1, "s": "x"}])
        writer.delete([1])
        assert ids_of(reader.ask("scan", table.uri, consistency="flushed")) == [1]
        assert reader.ask("count_rows", table.uri, consistency="flushed") == 1
        assert ids_of(reader.ask("scan", table.uri)) == [2]


def test_rows_that_are_not_durable_yet_are_no_business_of_another_process(tmp_path: Path, reader: Outside) -> None:
    table = create(str(tmp_path / "t"))
    slow = {"durable_write": False, "max_wal_flush_interval_ms": None, "max_wal_buffer_size": 0}
    with table.writer(compaction=None, **slow) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x"}])
        assert ids_of(table.scan()) == [1]
        assert ids_of(reader.ask("scan", table.uri)) == []
        writer.put_nowait([{"id": 2, "v": 1, "s": "x"}]).wait()
        assert ids_of(reader.ask("scan", table.uri)) == [1, 2]


# --------------------------------------------------------------------------------------- the writer in the other process


def _write_and_tell(uri: str, puts: int, pipe: Connection) -> None:
    """Put rows one after another and say so after each acknowledgement."""
    table = mw.open_table(uri)
    writer = table.writer(max_memtable_rows=20, compaction=None)
    for i in range(puts):
        writer.put([{"id": i, "v": i, "s": "x"}, {"id": -1, "v": i, "s": "newest"}])
        pipe.send(("acknowledged", i))
    writer.close()
    pipe.send(("closed", puts))


def _next(child: Child) -> tuple[str, int]:
    message = child.receive(60)
    assert message is not None, "the writer is silent"
    return message  # type: ignore[return-value]


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_this_process_sees_each_row_that_another_one_acknowledged_while_it_goes_on(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=TWO)
    child = start(_write_and_tell, table.uri, scaled(ci=150, prove=5_000))
    reads = 0
    newest_seen = -1
    while True:
        tag, number = _next(child)
        if tag == "closed":
            break
        if number % 5 and reads > 3:  # fall behind and catch up: the writer does not wait for us
            continue
        found = {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()}
        assert set(range(number + 1)) <= found.keys()
        assert found[-1] >= max(number, newest_seen)
        newest_seen = found[-1]
        assert table.get(number, ["v"]) == {"v": number}
        reads += 1
    assert child.wait(30) == 0
    assert reads > 5
    assert table.count_rows() == number + 1
    assert {shard.epoch for shard in table.shards()} == {1}
