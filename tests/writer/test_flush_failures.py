"""A flush that fails: no poison, retried, in order, told to who waits; the rows stay readable throughout."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal import FencedError, MemWalError, ShardWriter, UnavailableError
from lance_memwal.clock import BackOff
from lance_memwal.write import flush
from tests.kit.writers import (
    BLOOM,
    MANIFEST,
    SECONDS,
    WatchedStore,
    everything,
    flushed,
    in_thread,
    memwal_threads,
    open_writer,
    rows,
    scanned,
    wait_for,
    watched,
)


def wait_for_failures(writer: ShardWriter, count: int) -> None:
    wait_for(lambda: writer._shard.health.flush_failures >= count)


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "_BACK_OFF", BackOff(0.002, 0.01, jitter=0.0))


def test_a_failed_flush_is_retried_and_does_not_poison(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put", BLOOM, 2)
        writer.force_seal_active()
        wait_for_failures(writer, 1)
        writer.put(rows([2]))
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1]
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}


@pytest.mark.parametrize("after", [True, False])
def test_a_manifest_commit_that_fails_is_tried_again_and_judged_by_content(tmp_path: Path, after: bool) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put_new", MANIFEST, 1, after=after)
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert [len(found) for found in flushed(tmp_path).values()] == [1]
        writer.put(rows([2]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1, 2]
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}


def attempts(place: Path) -> list[str]:
    """The SSTable directories on disk, published or not."""
    return sorted(path.name for path in place.glob("_mem_wal/*/*_gen_*"))


@pytest.mark.repro("writer-15")
def test_attempts_that_fail_again_and_again_leave_no_directory(tmp_path: Path) -> None:
    """10 MB became 110 MB in 18 seconds."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        failing = store.fail("put", BLOOM)
        writer.force_seal_active()
        wait_for_failures(writer, 5)
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)
    assert len(attempts(tmp_path)) == 1
    assert list(flushed(tmp_path)) == [1]


def test_an_attempt_whose_commit_has_an_unknown_outcome_stays(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put_new", MANIFEST, 1, after=True)
        writer.force_seal_active()
        wait_for_failures(writer, 1)
        writer.wait_for_flush_drain(SECONDS)
        assert len(attempts(tmp_path)) == 1, "the second attempt found that the first had landed, and went"
        assert everything(writer, tmp_path) == {1: "a"}


def test_while_generation_n_fails_generation_n_plus_1_waits(tmp_path: Path) -> None:
    """Lesson 3: N + 1 was committed, and replay skipped N."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        failing = store.fail("put", "_gen_1/" + BLOOM)
        for k in (1, 2, 3):
            writer.put(rows([k]))
            writer.force_seal_active()
        wait_for_failures(writer, 3)
        assert flushed(tmp_path) == {}
        assert writer.memtable_stats().frozen_count == 3
        assert scanned(writer) == {1: "a", 2: "a", 3: "a"}
        wait_for(lambda: not any(name.endswith(("_gen_2", "_gen_3")) for name in attempts(tmp_path)))
        failing.open()
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1, 2, 3]


def test_a_crash_while_generation_n_fails_loses_nothing(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    store.fail("put", BLOOM)
    for k in (1, 2, 3):
        writer.put(rows([k]))
        writer.force_seal_active()
    wait_for_failures(writer, 1)
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {1: "a", 2: "a", 3: "a"}


def test_after_five_failures_waiters_are_told_and_retries_go_on_and_recover(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_unflushed_memtable_bytes=2000) as writer:
        failing = store.fail("put", BLOOM, error=lambda: UnavailableError("no space"))
        writer.put(rows(range(100)))
        waiting = in_thread(lambda: writer.put(rows([1000])))  # over budget: freezes the active memtable and waits
        with pytest.raises(UnavailableError, match="no space"):
            waiting.result()
        assert writer._shard.health.flush_failures >= 5
        with pytest.raises(UnavailableError, match="no space"):
            writer.wait_for_flush_drain(SECONDS)
        with pytest.raises(UnavailableError, match="no space"):
            writer.put(rows([1001]))
        assert len(scanned(writer)) == 100
        wait_for_failures(writer, 8)
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)
        writer.wait_for_flush_drain(SECONDS)
        writer.put(rows([1002]))
        assert len(everything(writer, tmp_path)) == 101


def test_fewer_than_five_failures_are_not_told_to_a_waiting_drain(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put", BLOOM, 4)
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1]


def test_close_raises_the_error_of_a_flush_that_keeps_failing_and_reopening_recovers(tmp_path: Path) -> None:
    """Lessons 17 and 19: close returned although its flush failed; a waiter was never told."""
    store, location = watched(tmp_path)
    writer = open_writer(location)
    writer.put(rows([1]))
    store.fail("put", BLOOM, error=lambda: UnavailableError("no space"))
    with pytest.raises(UnavailableError, match="no space"):
        in_thread(writer.close).result()
    writer.close()
    assert not memwal_threads()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {1: "a"}


def test_a_drain_that_takes_too_long_says_how_much_is_left(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        held = store.hold("put", BLOOM)
        writer.force_seal_active()
        with pytest.raises(UnavailableError, match="1 memtables were not flushed within"):
            writer.wait_for_flush_drain(timeout=0.02)
        held.open()
        writer.wait_for_flush_drain(SECONDS)


def test_an_error_that_is_not_ours_is_told_as_one_of_ours_with_its_cause(tmp_path: Path) -> None:
    """Lesson 16: one unexpected error killed the worker, and with it every later flush."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        failing = store.fail("put", BLOOM, error=lambda: RuntimeError("a bug"))
        writer.put(rows([1]))
        writer.force_seal_active()
        with pytest.raises(MemWalError, match="a bug") as caught:
            writer.wait_for_flush_drain(SECONDS)
        assert isinstance(caught.value.__cause__, RuntimeError)
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)


def test_a_panic_of_native_code_does_not_end_the_worker(tmp_path: Path) -> None:
    class PanicException(BaseException):
        pass

    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        store.fail("put", BLOOM, 2, error=lambda: PanicException("index out of bounds"))
        writer.put(rows([1]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1]


def test_a_flush_that_is_fenced_ends_and_its_rows_stay_readable(tmp_path: Path) -> None:
    first = open_writer(tmp_path)
    first.put(rows([1]))
    with open_writer(tmp_path) as second:
        first._shard.seal()  # as a full memtable does, without the look at the manifest
        with pytest.raises(FencedError):
            first.wait_for_flush_drain(SECONDS)
        assert scanned(first) == {1: "a"}
        assert flushed(tmp_path) == {}
        with pytest.raises(FencedError):
            first.put(rows([2]))
        assert everything(second, tmp_path) == {1: "a"}
    with pytest.raises(FencedError):
        first.close()


def test_the_raised_error_does_not_collect_tracebacks(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    failing = store.fail("put", BLOOM)
    writer.put(rows([1]))
    writer.force_seal_active()
    wait_for_failures(writer, 5)
    held = store.hold("put", BLOOM)
    failing.open()
    held.wait_reached()  # the next attempt hangs: from now on it is one error that is raised again and again

    def depth() -> int:
        with pytest.raises(UnavailableError) as caught:
            writer.wait_for_flush_drain(SECONDS)
        frame, count = caught.value.__traceback__, 0
        while frame is not None:
            frame, count = frame.tb_next, count + 1
        return count

    first = depth()
    assert [depth() for _ in range(5)] == [first] * 5
    held.open()
    writer.abort()


def test_bytes_of_a_failed_flush_count_until_it_landed(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows(range(1000)))
        failing = store.fail("put", BLOOM)
        writer.force_seal_active()
        wait_for_failures(writer, 2)
        assert writer.memtable_stats().frozen_bytes > 10_000
        assert writer._shard.commits.held_bytes > 10_000
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)
        assert writer.memtable_stats().frozen_bytes == 0
        assert writer._shard.commits.held_bytes == 0


def test_each_attempt_writes_its_own_directory(tmp_path: Path) -> None:
    store: WatchedStore
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put_new", MANIFEST, 1)
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        blooms = [path for kind, path in store.calls if kind == "put" and BLOOM in path]
        assert len(set(blooms)) == 2
        assert writer.manifest().sstables[0].path in blooms[1]
