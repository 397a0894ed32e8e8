"""Appenders that share an epoch: whatever another one does in the middle of an append, rows are there exactly once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.tailer import WalTailer
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender

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


def test_a_bulk_that_was_announced_is_lost_to_a_successor_and_can_be_tried_again(
    template: Path, tmp_path: Path
) -> None:
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
