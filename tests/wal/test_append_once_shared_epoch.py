"""Appends without a writer that are in doubt, or in the middle of which another appender acts: rows exist exactly once."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.tailer import WalTailer
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.write import shared_shards
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import ShardAppend, TableAppender, TakeoverPolicy
from tests.kit.interrupts import Interrupter, interrupted_everywhere
from tests.kit.writers import WatchedStore, hide_writers, in_thread, watched

SHARD = mw.shard_id_for(mw.Unsharded())
LARGE = "x" * 4096
POINTS = {
    "entry": ("once.before_put", "once.after_put"),
    "bulk": ("once.before_mark", "once.before_commit", "once.after_commit"),
}
OTHERS = ("append", "bulk", "flush", "append flush", "append flush collect", "bulk append flush collect")


class CrashError(Exception):
    """The process ends here."""


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    yield
    crash_points.install(None)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shared") / "template"
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])
    mw.create_table(str(place), schema, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    return place


def rows(number: int, kind: str) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": pa.array([number], pa.int64()), "value": [LARGE if kind == "bulk" else ""]})]


def appender(uri: str) -> OnceAppender:
    return OnceAppender(uri, max_entry_bytes=2048)


def meanwhile(uri: str, claim: ShardClaim, what: str) -> Callable[[], None]:
    """Somebody else does `what`, one thing after the other."""
    other = appender(uri)

    def act() -> None:
        for step, name in enumerate(what.split()):
            if name == "flush":
                other.flush_tail(claim)
            elif name == "collect":
                mw.open_table(uri).gc(grace_seconds=0)
            else:
                other.append(claim, rows(100 + step, name), txn=("other", step))

    return act


def at_first(point: str, action: Callable[[], None], *, crash: bool) -> None:
    def handler(reached: str) -> None:
        if reached == point:
            crash_points.install(None)
            action()
            if crash:
                raise CrashError

    crash_points.install(handler)


def ids(uri: str) -> list[int]:
    return sorted(n for n in mw.open_table(uri).scan(columns=["id"]).to_table().column("id").to_pylist() if n < 100)


@pytest.mark.repro("writer-01", "writer-02")
@pytest.mark.parametrize("txn", [("app", 7), None], ids=["transaction", "plain"])
@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize(("kind", "point"), [(kind, point) for kind, points in POINTS.items() for point in points])
def test_an_append_is_there_once_whatever_happens_in_its_middle(
    kind: str, point: str, others: str, txn: tuple[str, int] | None, template: Path, tmp_path: Path
) -> None:
    for crash in (False, True):
        uri = str(shutil.copytree(template, tmp_path / f"table{crash}"))
        once = appender(uri)
        claim = once.claim(SHARD)
        once.append(claim, rows(1, "entry"))
        at_first(point, meanwhile(uri, claim, others), crash=crash)
        if not crash:
            assert not once.append(claim, rows(2, kind), txn=txn).skipped
            assert ids(uri) == [1, 2]
            continue
        with pytest.raises(CrashError):
            once.append(claim, rows(2, kind), txn=txn)
        appender(uri).flush_tail(claim)  # the cursor passes whatever it left
        mw.open_table(uri).gc(grace_seconds=0)
        if txn is not None:
            appender(uri).append(claim, rows(2, kind), txn=txn)
            assert appender(uri).append(claim, rows(2, kind), txn=txn).skipped
        assert ids(uri) in ([1, 2], [1] if txn is None else [1, 2])
        assert mw.open_table(uri).verify().ok


def test_a_bulk_that_was_announced_is_published_by_whoever_comes_next(template: Path, tmp_path: Path) -> None:
    uri = str(shutil.copytree(template, tmp_path / "table"))
    once = appender(uri)
    claim = once.claim(SHARD)
    at_first("once.before_commit", lambda: None, crash=True)
    with pytest.raises(CrashError):
        once.append(claim, rows(1, "bulk"), txn=("app", 1))
    assert ids(uri) == []
    assert appender(uri).append(claim, rows(2, "entry")).generation == 2
    assert ids(uri) == [1, 2]
    assert appender(uri).append(claim, rows(1, "bulk"), txn=("app", 1)).skipped


def test_who_fails_to_publish_the_bulk_of_another_leaves_its_rows_alone(template: Path, tmp_path: Path) -> None:
    """Somebody else was faster, and then the shard was taken over: that is no reason to remove what is published."""
    uri = str(shutil.copytree(template, tmp_path / "table"))
    once, helper, faster = appender(uri), appender(uri), appender(uri)
    claim = once.claim(SHARD)
    at_first("once.before_commit", lambda: None, crash=True)
    with pytest.raises(CrashError):
        once.append(claim, rows(1, "bulk"), txn=("app", 1))

    def overtake() -> None:
        faster.append(claim, rows(2, "entry"))
        faster.claim(SHARD)

    at_first("once.before_help", overtake, crash=False)
    with pytest.raises(mw.FencedError):
        helper.append(claim, rows(3, "entry"))
    assert ids(uri) == [1, 2]


def test_announced_bulk_lost_to_a_successor_can_be_retried(template: Path, tmp_path: Path) -> None:
    uri = str(shutil.copytree(template, tmp_path / "table"))
    once = appender(uri)
    stale = once.claim(SHARD)
    at_first("once.before_commit", lambda: None, crash=True)
    with pytest.raises(CrashError):
        once.append(stale, rows(1, "bulk"), txn=("app", 1))
    claim = appender(uri).claim(SHARD)
    assert appender(uri).append(claim, rows(2, "entry")).generation == 1
    with pytest.raises(mw.FencedError):
        once.append(stale, rows(1, "bulk"), txn=("app", 1))
    assert not appender(uri).append(claim, rows(1, "bulk"), txn=("app", 1)).skipped
    assert ids(uri) == [1, 2]


def test_a_seal_that_nobody_flushed_ends_the_generation_in_its_own_epoch_only(template: Path, tmp_path: Path) -> None:
    uri = str(shutil.copytree(template, tmp_path / "table"))
    once = appender(uri)
    claim = once.claim(SHARD)
    once.append(claim, rows(1, "entry"))
    at_first("once.before_commit", lambda: None, crash=True)
    with pytest.raises(CrashError):
        once.flush_tail(claim)
    assert appender(uri).append(claim, rows(2, "entry")).generation == 2
    at_first("once.before_commit", lambda: None, crash=True)
    with pytest.raises(CrashError):
        once.flush_tail(claim)
    successor = appender(uri).claim(SHARD)
    assert appender(uri).append(successor, rows(3, "entry")).generation == 2
    assert appender(uri).flush_tail(successor) == 2
    assert ids(uri) == [1, 2, 3]
    assert mw.open_table(uri).verify().ok


def test_an_append_without_a_transaction_carries_one_of_its_process_that_counts(template: Path, tmp_path: Path) -> None:
    uri = str(shutil.copytree(template, tmp_path / "table"))
    first, second = appender(uri), appender(uri)
    claim = first.claim(SHARD)
    for once in (first, first, second):
        once.append(claim, rows(1, "entry"))
    tailer = WalTailer(uri, SHARD)
    found = [entry.txn for entry in (tailer.read_entry(position) for position in (2, 3, 4)) if entry is not None]
    apps = [txn.app for txn in found if txn is not None]
    assert [txn.version for txn in found if txn is not None] == [1, 2, 1]
    assert apps[0] == apps[1] != apps[2]
    assert all(app.startswith("memwal:") for app in apps)


LATE = ("late", 1)


class SleepError(Exception):
    """A process that sleeps right before a put, and dies once the put is on its way."""


class _Hooked(WrappedStore):
    """Calls `hook(kind, path, data)` before every call."""

    def __init__(self, inner: Any, hook: Callable[..., None]) -> None:
        super().__init__(inner)
        self._hook = hook

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        self._hook(kind, path, *rest)
        return call(path, *rest, **options)


def _hooked(uri: str, hook: Callable[..., None]) -> Location:
    location = resolve(uri)
    store: Any = _Hooked(location.store, hook)
    return replace(location, store=store, store_once=store)


def _row(number: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": pa.array([number], pa.int64())})]


def _late_entry(uri: str, claim: ShardClaim) -> tuple[str, bytes]:
    """The put of an appender that read the log as it is now: it is on its way, with row 1."""
    sent: list[tuple[str, bytes]] = []

    def sleep(kind: str, path: str, *rest: Any) -> None:
        if kind == "put_new" and "/wal/" in path:
            sent.append((path, bytes(rest[0])))
            raise SleepError

    with contextlib.suppress(SleepError):
        OnceAppender(_hooked(uri, sleep)).append(claim, _row(1), txn=LATE)
    return sent[0]


def _appender(uri: str, claim: ShardClaim, others: OnceAppender, others_rows: int) -> OnceAppender:
    """An appender that knows nothing above the sentinel. Its next create finds an entry of `others`.

    Before it reads that entry, GC empties the position and the late put fills it. The seal stays, as the newest entry.
    """
    path, data = _late_entry(uri, claim)
    armed = [True]

    def move_on(kind: str, where: str, *_: Any) -> None:
        if armed and kind == "get" and where == path:
            armed.clear()
            assert others.flush_tail(claim) == 1
            assert mw.open_table(uri).gc(grace_seconds=0).count("entry") == others_rows
            resolve(uri).store.put_new(path, data)

    appender = OnceAppender(_hooked(uri, move_on))
    appender.catch_up(claim)
    for number in range(others_rows):
        others.append(claim, _row(10 + number), txn=("other", number))
    return appender


def _ids(uri: str) -> list[int]:
    return sorted(mw.open_table(uri).scan().to_table().column("id").to_pylist())


@pytest.fixture
def uri(tmp_path: Path) -> str:
    schema = pa.schema([pa.field("id", pa.int64())])  # append-only: a second copy is seen
    defaults = {"fsync": False}
    return mw.create_table(str(tmp_path / "t"), schema, sharding=mw.Unsharded(), writer_defaults=defaults).uri


@pytest.mark.parametrize("is_retry", [True, False], ids=["retry of the dead entry", "another append"])
@pytest.mark.parametrize("others_rows", [1, 2], ids=["two entries, one dead", "one entry, dead"])
def test_dead_entry_neither_skips_its_retry_nor_enters_a_map(uri: str, others_rows: int, is_retry: bool) -> None:
    """The model: B3 (two entries) and K14 (one entry)."""
    others = OnceAppender(uri)
    claim = others.claim(SHARD)
    appender = _appender(uri, claim, others, others_rows)
    if not is_retry:
        appender.append(claim, _row(2), txn=("app", 1))
        appender = OnceAppender(uri)
    assert not appender.append(claim, _row(1), txn=LATE).skipped
    assert appender.append(claim, _row(1), txn=LATE).skipped
    assert _ids(uri) == [1, *([] if is_retry else [2]), *range(10, 10 + others_rows)]


def test_a_transaction_that_was_interrupted_anywhere_is_in_the_log_once(uri: str) -> None:
    """What the process knew of the log was at the entry already, and its transactions were not: it was written again."""
    sink, fresh = TableAppender(OnceAppender(uri)), OnceAppender(uri)
    sink.append(SHARD, _row(0), txn=("app", 0))
    for at in itertools.count(1):
        interrupter = Interrupter(at, ("lance_memwal/write/once.py",))
        interrupted = interrupter.run(partial(sink.append, SHARD, _row(at), txn=("app", at)))
        again = sink.append(SHARD, _row(at), txn=("app", at))
        assert again.skipped or interrupted
        known = sink.appender.known_tail(SHARD)
        read = fresh.catch_up(sink.claims[SHARD])
        if known is not None and known.last_position == read.last_position:  # else it finds that out when it appends
            found = [(t.entries, t.run.generation, t.run.batches) for t in (known, read)]
            assert found[0] == found[1], interrupter.where
        if not interrupted:
            break
    assert at > 40, "the trace did not see the append"
    assert Counter(_ids(uri)) == dict.fromkeys(range(at + 1), 1)


def test_an_interrupt_anywhere_leaves_the_shard_to_other_threads(uri: str) -> None:
    """It came as the turn was had, which then nobody gave back: every other thread waited until its patience ended."""
    sink = TableAppender(OnceAppender(uri), policy=TakeoverPolicy(wait_seconds=1.0))
    sink.append(SHARD, _row(0), txn=("app", 0))

    def check(where: str) -> None:
        try:
            in_thread(lambda: sink.append(SHARD, _row(0), txn=("app", 0))).result()
        except mw.ConflictError as error:
            raise AssertionError(where) from error

    traced = ("write/table_appender.py", "process/turns.py")
    assert interrupted_everywhere(lambda: sink.append(SHARD, _row(0), txn=("app", 0)), check, *traced) > 10


SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
SHARDS = [mw.shard_id_for(mw.Identity("v"), value) for value in ("a", "b")]
READS = ("list", "list_names", "get", "head")


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Manual(), writer_defaults={"fsync": False})


def sized_rows(number: int, size: int = 1) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([number]), pa.array(["a" * size])], schema=SCHEMA)]


def ids_of(table: mw.Table) -> list[int]:
    return sorted(mw.open_table(table.uri).scan(["id"]).to_table().column("id").to_pylist())


def slow_down() -> mw.UnavailableError:
    return mw.UnavailableError("503 Slow Down", ambiguous=False)


def refuse_reads(store: WatchedStore, part: str) -> None:
    for kind in READS:
        store.fail(kind, part, error=slow_down)


def after(point: str, action: Callable[[], Any]) -> None:
    def handler(reached: str) -> None:
        if reached == point:
            crash_points.install(None)
            action()

    crash_points.install(handler)


def opened(table: mw.Table, **options: Any) -> tuple[TableAppender, WatchedStore, Location]:
    store, location = watched(table.uri)
    sink = TableAppender(OnceAppender(location, **options))
    sink.append(SHARDS[0], sized_rows(1))
    return sink, store, location


@pytest.mark.parametrize("unread", ["manifest", "/wal"], ids=["the check after it fails", "its epoch ends"])
def test_stored_entry_is_of_unknown_outcome_if_its_check_fails(table: mw.Table, unread: str) -> None:
    sink, store, _ = opened(table)

    def fail() -> None:
        if unread == "/wal":
            table.shard_writer(shard_id=SHARDS[0]).abort()
        refuse_reads(store, unread)

    after("once.after_put", fail)
    with pytest.raises(mw.UnavailableError) as told:
        sink.append(SHARDS[0], sized_rows(2))
    assert told.value.ambiguous
    assert ids_of(table) == [1, 2]


def test_a_generation_that_was_announced_is_not_called_undone(table: mw.Table) -> None:
    sink, store, _ = opened(table, max_entry_bytes=4000)
    after("once.before_mark", lambda: after("once.before_commit", lambda: refuse_reads(store, "manifest")))
    with pytest.raises(mw.UnavailableError) as told:
        sink.append(SHARDS[0], sized_rows(2, 9000))
    assert told.value.ambiguous
    for rule in store.rules:
        rule.open()
    sink.append(SHARDS[0], sized_rows(3))  # which publishes what was announced
    assert ids_of(table) == [1, 2, 3]


@pytest.mark.parametrize(
    ("fails", "ambiguous"), [(f"{SHARDS[1]}/manifest", True), ("/wal", False)], ids=["second", "first"]
)
def test_append_to_several_shards_is_undone_only_if_the_first_fails(
    table: mw.Table, fails: str, ambiguous: bool
) -> None:
    sink, store, _ = opened(table)
    store.fail("put_new", fails, error=slow_down)
    with pytest.raises(mw.UnavailableError) as told:
        list(sink.append_all(SHARDS, lambda _: ShardAppend(sized_rows(2), None), at_once=1))
    assert told.value.ambiguous is ambiguous
    assert ids_of(table) == ([1, 2] if ambiguous else [1])


def test_put_over_several_shards_is_ambiguous_after_a_conflict_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharding = mw.Identity("v")
    table = mw.create_table(str(tmp_path / "s"), SCHEMA, writer_defaults={"fsync": False}, sharding=sharding)
    with table.writer() as writer:
        writer.put([{"id": 0, "v": "b"}])
        [shard] = writer.shard_writers
    monkeypatch.setattr(shared_shards, "WAIT_SECONDS", 0.5)
    with table.shard_writer(shard_id=shard) as elsewhere, table.writer(shared=True) as shared:
        hide_writers(table)
        elsewhere.put([{"id": 1, "v": "b"}])
        with pytest.raises(mw.UnavailableError, match="exclusive writer") as told:
            shared.put([{"id": 2, "v": "a"}, {"id": 3, "v": "b"}])
        assert told.value.ambiguous
    assert ids_of(table) == [0, 1, 2]


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_append_that_stopped_for_hours_after_its_create_is_not_made_again(table: mw.Table, is_taken_over: bool) -> None:
    """The shard had forgotten its transaction by then, so the append was made a second time (append R7)."""
    clock = SkippingClock()
    stopped, others = TableAppender(OnceAppender(table.uri)), TableAppender(OnceAppender(table.uri, clock=clock))
    stopped.append(SHARDS[0], sized_rows(0))
    others.append(SHARDS[0], sized_rows(1))

    def forget() -> None:
        clock.sleep(2 * 3600)
        if is_taken_over:
            others.learn({SHARDS[0]: others.appender.claim(SHARDS[0])})
        for number in (3, 4):
            others.append(SHARDS[0], sized_rows(number))
            others.flush(SHARDS[0])

    after("once.after_put", forget)
    with pytest.raises(mw.UnavailableError, match="120 minutes") as raised:
        stopped.append(SHARDS[0], sized_rows(2))
    assert raised.value.ambiguous
    assert ids_of(table) == [0, 1, 2, 3, 4]
