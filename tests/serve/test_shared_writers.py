"""Shared writers in one process: what is forwarded does what a local write does, and who may not, gets nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.epochs import IDLE_SECONDS
from lance_memwal.log.transactions import OWN_EXPIRY_MS, client_id
from lance_memwal.serve import runtime
from lance_memwal.serve.asked import AskedOwners
from lance_memwal.serve.numbers import OwnerNumbers
from lance_memwal.serve.record import Owner, OwnerRecords
from lance_memwal.serve.wire import encode_answer
from lance_memwal.table import newest_base
from lance_memwal.write.results import WriteResult
from tests.harness.points import run_once_at
from tests.harness.processes import start
from tests.kit.writers import in_thread, wait_for
from tests.serve.shared_child import exclusive_puts

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


@pytest.fixture
def pair(table: mw.Table) -> Iterator[tuple[mw.TableWriter, mw.TableWriter]]:
    """An owner, and a writer that forwards to it."""
    with table.writer(shared=True) as owner, table.writer(shared=True) as other:
        owner.put([{"id": 0, "v": "zero"}])
        other.put([{"id": 1, "v": "one"}])
        assert len(owner.owned_shards) == 1
        assert other.owned_shards == set()
        yield owner, other


def rows(table: mw.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()}


def test_an_id_that_is_born_before_the_first_entry_is_not_old_after_it(table: mw.Table) -> None:
    """Threads that write first, at the same time, take their ids before any of their entries is there."""
    with table.shard_writer() as writer:
        app = client_id("0" * 32, writer.shard_time_ms)
        writer.put([{"id": 1, "v": "a"}])
        assert writer.put([{"id": 2, "v": "b"}], txn=(app, 1)).written == 1


def test_every_verb_is_forwarded(table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]) -> None:
    _, other = pair
    assert other.put([{"id": 2, "v": "a"}, {"id": 3, "v": "b"}]).written == 2
    kept = other.put([{"id": 3, "v": "c"}, {"id": 4, "v": "d"}], if_absent=True)
    assert (kept.written, kept.rejected.to_pylist()) == (1, [{"id": 3}])
    assert other.put([{"id": 4, "v": "e"}], where="excluded.v < v").written == 0
    assert other.update([{"id": 2, "v": "A"}]).matched == 1
    assert other.compare_and_set(3, {"v": "b"}, {"v": "B"})
    assert not other.compare_and_set(3, {"v": "b"}, None)
    assert other.compare_and_set(5, None, {"id": 5, "v": "five"})
    assert other.update(where="id = 4", set={"v": "'D'"}).matched == 1
    assert other.delete([1]).written == 1
    assert other.delete([0, 77], count=True).matched == 1
    assert other.delete(where="id = 5").matched == 1
    assert rows(table) == {2: "A", 3: "B", 4: "D"}
    assert other.get(2) == {"id": 2, "v": "A"}
    ack = other.put_nowait([{"id": 9, "v": "n"}])
    assert ack.durable
    other.flush(30)
    assert table.compact().generations >= 1
    assert table.verify().ok


def test_the_order_of_a_table_is_kept_wherever_it_is_owned(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("ts", pa.int64())])
    table = mw.create_table(
        str(tmp_path / "t"),
        schema,
        primary_key="id",
        merge=mw.LastWrite(sequence="ts"),
        writer_defaults={"fsync": False},
    )
    with table.writer(shared=True) as owner, table.writer(shared=True) as other:
        owner.put([{"id": 1, "v": "new", "ts": 5}])
        late = other.put([{"id": 1, "v": "late", "ts": 4}, {"id": 2, "v": "two", "ts": 1}])
        assert (late.written, late.rejected.to_pylist()) == (1, [{"id": 1}])
        other.delete([1], sequence=3)
        other.delete([2], sequence=7)
        other.put([{"id": 2, "v": "late", "ts": 6}])
        assert other.owned_shards == set()
    assert [row["v"] for row in table.scan().to_table().to_pylist()] == ["new"]


def test_transactions_of_users_are_forwarded(pair: tuple[mw.TableWriter, mw.TableWriter]) -> None:
    owner, other = pair
    assert not other.put([{"id": 2, "v": "a"}], txn=("app", 1)).skipped
    assert other.put([{"id": 2, "v": "b"}], txn=("app", 1)).skipped
    assert owner.put([{"id": 2, "v": "b"}], txn=("app", 1)).skipped
    with pytest.raises(mw.InvalidInputError, match="older"):
        other.put([{"id": 2, "v": "b"}], txn=("app", 0))


def test_errors_arrive_as_they_are_and_the_next_write_goes_on(pair: tuple[mw.TableWriter, mw.TableWriter]) -> None:
    _, other = pair
    with pytest.raises(mw.InvalidInputError, match="999"):
        other.update([{"id": 999, "v": "x"}])
    with pytest.raises(mw.InvalidInputError, match="SQL text"):
        other.put([{"id": 1, "v": "x"}], where=pc.field("v") == "x")
    assert other.put([{"id": 1, "v": "y"}]).written == 1


def test_threads_of_both_share_entries(table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]) -> None:
    owner, other = pair
    [shard] = owner.owned_shards
    before = owner.stats()[shard]

    def work(writer: mw.TableWriter, start: int) -> None:
        for k in range(start, start + 25):
            writer.put([{"id": k, "v": "t"}])

    threads = [threading.Thread(target=work, args=(w, 100 * i)) for i, w in enumerate([owner, other] * 4, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = owner.stats()[shard]
    assert after.put_count - before.put_count == 200
    assert after.wal_flush_count - before.wal_flush_count < 200, "puts do not share entries"
    assert set(rows(table)) >= {100 * i + k for i in range(1, 9) for k in range(25)}


def test_when_the_owner_closes_another_one_takes_over(table: mw.Table) -> None:
    owner, other = table.writer(shared=True), table.writer(shared=True)
    owner.put([{"id": 1, "v": "a"}])
    other.put([{"id": 2, "v": "a"}])
    owner.close()
    with pytest.raises(mw.ClosedError):
        owner.put([{"id": 3, "v": "a"}])
    other.put([{"id": 3, "v": "b"}])
    assert len(other.owned_shards) == 1
    other.close()
    assert rows(table) == {1: "a", 2: "a", 3: "b"}


def test_an_owner_that_an_exclusive_writer_fenced_goes_on_after_it(
    table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]
) -> None:
    owner, other = pair
    with table.writer() as exclusive:
        exclusive.put([{"id": 1, "v": "exclusive"}])
    for writer, key in ((other, 2), (owner, 3)):
        writer.put([{"id": key, "v": "shared"}])
    assert len(owner.owned_shards | other.owned_shards) == 1
    assert rows(table) == {0: "zero", 1: "exclusive", 2: "shared", 3: "shared"}


def test_a_living_writer_of_this_process_that_does_not_share_is_refused_at_once(table: mw.Table) -> None:
    """Whether its rows wait in the log or are flushed: it is known to live."""
    with table.writer() as exclusive, table.writer(shared=True) as shared:
        exclusive.put([{"id": 1, "v": "a"}])
        with pytest.raises(mw.ConflictError, match="a writer of this process"):
            in_thread(lambda: shared.put([{"id": 2, "v": "b"}])).result(IDLE_SECONDS / 2)
        exclusive.flush()
        with pytest.raises(mw.ConflictError, match="shared=True"):
            shared.put([{"id": 2, "v": "b"}])
        exclusive.put([{"id": 3, "v": "a"}])
        exclusive.close()
        shared.put([{"id": 2, "v": "b"}])
    assert rows(table) == {1: "a", 2: "b", 3: "a"}


def test_a_writer_elsewhere_that_does_not_share_is_waited_for(table: mw.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_memwal.serve.shared_shard._BESIDE_SECONDS", 0.3)
    exclusive = start(exclusive_puts, table.uri)
    try:
        assert exclusive.receive(30) == ("put",)
        with table.writer(shared=True) as shared:
            with pytest.raises(mw.ConflictError, match="does not share"):
                shared.put([{"id": 2, "v": "b"}])
            os.kill(exclusive.pid, signal.SIGUSR1)
            assert exclusive.receive(30) == ("flushed",)
            shared.put([{"id": 2, "v": "b"}])
    finally:
        exclusive.kill()
    assert rows(table) == {1: "a", 2: "b"}


def test_a_stranger_without_the_token_gets_nothing(
    table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]
) -> None:
    owner, _ = pair
    [shard] = owner.owned_shards
    found = OwnerRecords(table.location, shard).find(table.shards()[0].epoch)
    assert found is not None
    assert found.address.startswith("grpc+tcp://127.0.0.1:")
    with flight.FlightClient(found.address) as client:
        for headers in ([], [(b"authorization", b"Bearer wrong")], [(b"authorization", b"\xff")]):
            options = flight.FlightCallOptions(headers=headers, timeout=5)
            for call in (
                lambda o=options: list(client.do_action(flight.Action("memwal.look", b""), o)),
                lambda o=options: list(client.do_action(flight.Action("memwal.writes", b""), o)),
                lambda o=options: list(client.list_flights(options=o)),
                lambda o=options: list(client.list_actions(options=o)),
            ):
                with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightInternalError)):
                    call()
        word = runtime.Secret(runtime.token()).word_for(found.address)
        known = flight.FlightCallOptions(headers=[(b"authorization", word)], timeout=5)
        for body in (b"", b"\xff" * 8, b"\x02\0\0\0{}", b"\x02\0\0\0[]rest", b"\x05\0\0\0hello"):
            for kind in ("memwal.look", "memwal.writes", "other"):
                [answer] = client.do_action(flight.Action(kind, bytes(16) + body), known)
                assert b'"error"' in answer.body.to_pybytes()
    assert rows(table) == {0: "zero", 1: "one"}


def test_a_stranger_who_listens_where_an_owner_was_learns_nothing_and_is_not_believed(table: mw.Table) -> None:
    """The owner is dead, its port is somebody else's now, who answers everything with yes."""
    heard: list[Any] = []

    class Gate(flight.ServerMiddlewareFactory):
        def start_call(self, info: Any, headers: Any) -> None:
            heard.append(headers)

    class Liar(flight.FlightServerBase):
        def do_action(self, context: Any, action: Any) -> list[bytes]:
            heard.append(action.body.to_pybytes())
            return [bytes(32) + encode_answer(5 if action.type == "memwal.look" else WriteResult(range(1), False, 1))]

    with Liar("grpc+tcp://127.0.0.1:0", middleware={"gate": Gate()}) as liar:
        dead = table.shard_writer()
        dead.put([{"id": 1, "v": "a"}])
        owner = Owner(f"grpc+tcp://127.0.0.1:{liar.port}", socket.gethostname(), 1, 1)
        assert OwnerRecords(table.location, dead.shard_id).announce(dead.epoch, owner)
        dead.abort()
        with table.writer(shared=True) as writer:
            writer.put([{"id": 2, "v": "b"}])
            assert len(writer.owned_shards) == 1
    assert heard
    assert runtime.token() not in repr(heard)
    assert rows(table) == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    "address", ["grpc+tcp://10.0.0.1:80", "grpc+tcp://127.0.0.1:80@elsewhere:1", "grpc+unix:///tmp/x", 7, None]
)
def test_a_record_leads_nobody_to_another_place(table: mw.Table, address: object) -> None:
    with table.shard_writer() as writer:
        records = OwnerRecords(table.location, writer.shard_id)
        assert records.announce(9, Owner(address, "host", 1, 1)) is True  # type: ignore[arg-type]
        assert records.find(9) is None


def test_nothing_secret_lies_beside_the_table_and_nobody_else_reads_the_token(
    table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]
) -> None:
    secret = runtime.token().encode()
    [record] = Path(table.uri).glob("_mem_wal/*/memwal_owner_*.json")
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert set(json.loads(record.read_text())) == {"address", "host", "pid", "started_ms"}
    for path in Path(table.uri).rglob("*"):
        assert path.is_dir() or secret not in path.read_bytes()


def test_the_token_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    token = runtime.token()
    assert token == runtime.token()
    assert len(token) >= 32
    path = tmp_path / "lance-memwal" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    with pytest.raises(mw.InvalidInputError, match="others can read"):
        runtime.token()
    path.chmod(0o600)
    path.parent.chmod(0o755)
    with pytest.raises(mw.InvalidInputError, match="0700"):
        runtime.token()
    monkeypatch.setenv("LANCE_MEMWAL_TOKEN", "short")
    with pytest.raises(mw.InvalidInputError, match="LANCE_MEMWAL_TOKEN"):
        runtime.token()
    monkeypatch.setenv("LANCE_MEMWAL_TOKEN", "given-by-somebody-1234")
    assert runtime.token() == "given-by-somebody-1234"


def test_another_token_is_an_error_that_says_so_and_not_a_takeover(
    table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, _ = pair
    monkeypatch.setenv("LANCE_MEMWAL_TOKEN", "another-token-of-a-stranger")
    with table.writer(shared=True) as stranger, pytest.raises(mw.UnavailableError, match="does not know our token"):
        stranger.put([{"id": 5, "v": "x"}])
    assert len(owner.owned_shards) == 1
    assert table.shards()[0].epoch == 1


def test_an_id_that_the_shard_may_have_forgotten_is_refused(table: mw.Table) -> None:
    with table.shard_writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
        now = writer.shard_time_ms
        young, old = client_id("young", now - OWN_EXPIRY_MS + 60_000), client_id("old", now - OWN_EXPIRY_MS)
        assert not writer.put([{"id": 2, "v": "a"}], txn=(young, 1)).skipped
        for write in (
            lambda: writer.put([{"id": 3, "v": "a"}], txn=(old, 1)),
            lambda: writer.delete([3], txn=(old, 1)),
            lambda: writer.update([{"id": 2, "v": "b"}], txn=(old, 1)),
        ):
            with pytest.raises(mw.UnavailableError, match="unknown") as found:
                write()
            assert found.value.ambiguous
            assert not found.value.retryable
    assert rows(table) == {1: "a", 2: "a"}


def test_a_put_of_a_signal_handler_does_not_wait_for_the_claim_that_it_interrupted(table: mw.Table) -> None:
    writer = table.writer(shared=True)
    refused: list[Exception] = []

    def handler() -> None:
        try:
            writer.put([{"id": 2, "v": "handler"}])
        except mw.UnavailableError as error:
            refused.append(error)

    happened = run_once_at("serve.announced", handler)
    try:
        writer.put([{"id": 1, "v": "a"}])
    finally:
        crash_points.install(None)
    writer.close()
    assert happened
    assert len(refused) == 1
    assert rows(table) == {1: "a"}


def test_shards_are_owned_one_by_one(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 4), writer_defaults={"fsync": False}
    )
    with table.writer(shared=True) as first, table.writer(shared=True) as second:
        first.put([{"id": 1, "v": "a"}])
        second.put([{"id": k, "v": "b"} for k in range(40)])
        first.put([{"id": k, "v": "c"} for k in range(20)])
        assert len(first.owned_shards) == 1
        assert len(second.owned_shards) == 3
        assert not first.owned_shards & second.owned_shards
        assert set(first.shard_writers) == first.owned_shards
    assert rows(table) == {k: "c" if k < 20 else "b" for k in range(40)}


def test_shards_that_are_parked_are_taken_up_again_or_by_others(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 4), writer_defaults={"fsync": False}
    )
    with table.writer(shared=True, max_open_shards=1) as first, table.writer(shared=True) as second:
        for v in "abc":
            first.put([{"id": k, "v": v} for k in range(12)])
        second.put([{"id": k, "v": "d"} for k in range(6)])
        first.put([{"id": k, "v": "e"} for k in range(3)])
    assert rows(table) == {k: "e" if k < 3 else "d" if k < 6 else "c" for k in range(12)}
    assert not table.shards() or all(shard.epoch <= 3 for shard in table.shards())


def test_a_writer_that_was_fenced_raises_or_takes_its_shard_back(table: mw.Table) -> None:
    with pytest.raises(mw.InvalidInputError, match="on_fenced"):
        table.writer(on_fenced="ignore")
    with table.writer(on_fenced="retake") as patient, table.writer() as strict:
        for round_ in range(2):
            strict_key, patient_key = 10 + round_, 20 + round_
            if round_ == 0:
                patient.put([{"id": 1, "v": "a"}])
                strict.put([{"id": strict_key, "v": "a"}])
                patient.put([{"id": patient_key, "v": "b"}])
            else:
                with pytest.raises(mw.FencedError):
                    strict.put([{"id": strict_key, "v": "a"}])
                strict.abort()
    assert rows(table) == {1: "a", 10: "a", 20: "b"}


def test_an_evolved_schema_reaches_the_owner(table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]) -> None:
    _, other = pair
    table.dataset.add_columns({"extra": "cast(null as bigint)"})
    other.evolve_schema()
    other.put([{"id": 7, "v": "x", "extra": 7}])
    assert table.get(7) == {"id": 7, "v": "x", "extra": 7}


async def _many(writer: mw.TableWriter) -> Any:
    import asyncio

    return await asyncio.gather(*[writer.aio.put([{"id": k, "v": "async"}]) for k in range(50, 100)])


def test_columns_that_only_the_owner_knows_are_null_where_that_was_asked(
    table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]
) -> None:
    """Each writer evolves for itself; the other one knows the columns of before."""
    owner, other = pair
    table.dataset.add_columns(pa.field("w", pa.int64()))
    owner.evolve_schema()
    with pytest.raises(mw.InvalidInputError, match="left out: 'w'"):
        other.put([{"id": 2, "v": "two"}])
    assert other.put([{"id": 2, "v": "two"}], missing="null").written == 1
    assert other.put_nowait([{"id": 5, "v": "five"}], missing="null").result.written == 1
    assert other.insert([{"id": 3, "v": "three"}], missing="null").written == 1
    assert other.put([{"id": 3, "v": "more"}, {"id": 4, "v": "four"}], missing="null", if_absent=True).written == 1
    assert rows(table) == {0: "zero", 1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


def test_an_owner_erases_no_column_that_another_writer_brought(
    table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]
) -> None:
    """Its shard was evolved by the other one; it does not know the column yet, and must not make it null."""
    owner, other = pair
    table.dataset.add_columns(pa.field("w", pa.int64()))
    other.evolve_schema()
    other.put([{"id": 0, "v": "zero", "w": 5}])
    with pytest.raises(mw.InvalidInputError, match="left out: 'w'"):
        owner.put([{"id": 0, "v": "old"}])
    assert table.get(0) == {"id": 0, "v": "zero", "w": 5}
    assert owner.put([{"id": 1, "v": "null"}], missing="null").written == 1
    assert owner.put([{"id": 0, "v": "kept"}], missing="keep").written == 1
    owner.evolve_schema()
    assert owner.put([{"id": 2, "v": "two", "w": 6}]).written == 1
    found = {row["id"]: (row["v"], row["w"]) for row in table.scan().to_table().to_pylist()}
    assert found == {0: ("kept", 5), 1: ("null", None), 2: ("two", 6)}


def test_event_loops_may_share_too(table: mw.Table, pair: tuple[mw.TableWriter, mw.TableWriter]) -> None:
    import asyncio

    assert sum(result.written for result in asyncio.run(_many(pair[1]))) == 50
    assert set(rows(table)) >= set(range(50, 100))


def test_no_server_is_left_when_all_are_closed(table: mw.Table) -> None:
    writer = table.writer(shared=True)
    writer.put([{"id": 1, "v": "a"}])
    [record] = Path(table.uri).glob("_mem_wal/*/memwal_owner_*.json")
    port = int(json.loads(record.read_text())["address"].rpartition(":")[2])
    assert _is_listening(port)
    writer.close()
    wait_for(lambda: not _is_listening(port))
    assert not list(Path(table.uri).glob("_mem_wal/*/memwal_owner_*.json"))


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_owner_says_how_it_is_and_nobody_else_does(
    pair: tuple[mw.TableWriter, mw.TableWriter], table: mw.Table
) -> None:
    (shard,) = table.shards()
    asked = AskedOwners(table.location, newest_base(table).table_id)
    sight = asked.ask(shard.shard_id, shard.epoch)
    assert sight is not None
    assert sight.owner.pid == os.getpid()
    assert sight.numbers.puts == 2
    assert sight.numbers.memtable_rows == 2
    assert 0 < sight.numbers.pressure < 1
    assert 0 < sight.numbers.put_p50 <= sight.numbers.put_p99
    assert sight.numbers.waits == 0
    gets = table.location.metrics.snapshot()["get"].count
    assert asked.ask(shard.shard_id, shard.epoch) is not None
    assert table.location.metrics.snapshot()["get"].count == gets
    assert asked.ask(shard.shard_id, shard.epoch + 1) is None  # nobody was there
    pair[0].close()
    assert asked.ask(shard.shard_id, shard.epoch) is None


def test_an_exclusive_writer_says_nothing_and_is_looked_for_once(table: mw.Table) -> None:
    with table.writer() as writer:
        writer.put([{"id": 0, "v": "zero"}])
        (shard,) = table.shards()
        asked = AskedOwners(table.location, newest_base(table).table_id)
        assert asked.ask(shard.shard_id, shard.epoch) is None
        gets = table.location.metrics.snapshot()["get"].count
        assert asked.ask(shard.shard_id, shard.epoch) is None
        assert table.location.metrics.snapshot()["get"].count == gets


def test_numbers_of_other_versions_are_understood_as_far_as_they_go() -> None:
    assert OwnerNumbers.heard({"puts": 3, "moods": 7, "waits": "many"}) == OwnerNumbers(puts=3)
