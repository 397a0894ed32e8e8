"""The judges are judged: every kind of wrong answer, and every end that nobody planned, is called wrong; every permitted
one is not.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from lance_memwal.types import WalEntry
from tests.harness import deaths
from tests.harness.crash import run_crashes, run_takeovers
from tests.harness.deaths import NEVER, Actor, CrashFailure, CrashReport, Death, watch
from tests.harness.oracle import Oracle, Row, Write, epoch_faults
from tests.harness.processes import start
from tests.harness.profile import profile
from tests.harness.table_record import TableRecord
from tests.harness.table_shapes import STREAM, Attempt, Shown, TableLife


def rows(**numbers: int) -> list[Row]:
    return [Row(int(name[1:]), number) for name, number in numbers.items()]


def rules(oracle: Oracle, *seen: Row) -> set[str]:
    return {broken.rule for broken in oracle.check(seen)}


def written(*writes: tuple[Write, bool | None]) -> Oracle:
    """An oracle that heard of these writes of one thread; None: no return, else whether it promised storage."""
    oracle = Oracle()
    for write, durable in writes:
        oracle.issued(0, write)
        if durable is not None:
            oracle.returned(0, durable=durable)
    return oracle


SEVEN, BOTH, AGAIN = Write(1, (7,)), Write(1, (7, 8)), Write(2, (7,))
LIES = {
    "an acknowledged row is gone": ([(SEVEN, True)], [], {"I1"}),
    "an older value than the acknowledged one": ([(SEVEN, True), (AGAIN, True)], rows(k7=1), {"I1"}),
    "a row that no process wrote": ([(SEVEN, True)], rows(k7=1, k8=1), {"I2"}),
    "a row with other columns than written": ([(SEVEN, True)], [Row(7, 1, intact=False)], {"I2"}),
    "half of a put": ([(BOTH, None)], rows(k7=1), {"I4"}),
    "half of a delete": ([(BOTH, True), (Write(2, (7, 8), deletes=True), None)], rows(k8=1), {"I4"}),
    "a deleted row comes back": ([(SEVEN, True), (Write(2, (7,), deletes=True), True)], rows(k7=1), {"I1"}),
    "a key is there twice": ([(SEVEN, True)], [Row(7, 1), Row(7, 1)], {"I5"}),
    "a write that did not return is there": ([(SEVEN, True), (AGAIN, None)], rows(k7=2), set()),
    "a write that did not return is not there": ([(SEVEN, True), (AGAIN, None)], rows(k7=1), set()),
}


@pytest.mark.parametrize(("writes", "seen", "expected"), LIES.values(), ids=LIES)
def test_oracle_sees_a_lie(writes: list[Any], seen: list[Row], expected: set[str]) -> None:
    found = rules(written(*writes), *seen)
    assert expected <= found if expected & {"I2", "I5"} else found == expected


@pytest.mark.parametrize(("first", "then", "rule"), [(rows(k7=1), [], "I1"), ([], rows(k7=1), "I2")])
def test_rows_seen_after_recovery_stay_and_no_others_appear(first: list[Row], then: list[Row], rule: str) -> None:
    oracle = written((SEVEN, None))
    assert oracle.check(first) == []
    assert rule in rules(oracle, *then)


def test_writes_without_a_promise_may_be_lost_from_the_end_only() -> None:
    for seen, expected in ((rows(), set()), (rows(k1=1), set()), (rows(k1=1, k2=2), set()), (rows(k2=2), {"I4"})):
        oracle = written((Write(1, (1,)), False), (Write(2, (2,)), False))
        assert rules(oracle, *seen) == expected


def test_a_drain_promises_what_returned_before_it() -> None:
    oracle = written((Write(1, (1,)), False))
    oracle.drain_begins()
    oracle.issued(0, Write(2, (2,)))
    oracle.returned(0, durable=False)
    oracle.drain_returned()
    assert rules(oracle) == {"I1"}
    assert oracle.check(rows(k1=1)) == []


def test_a_write_that_survives_an_earlier_one_of_another_thread_is_a_hole() -> None:
    oracle = Oracle()
    oracle.issued(0, Write(1, (1,)))
    oracle.returned(0, durable=False)
    oracle.issued(1, Write(2, (2,)))
    oracle.returned(1, durable=False)
    assert rules(oracle, *rows(k2=2)) == {"I3"}


@pytest.mark.parametrize("seen", [{}, {"k1": 1}, {"k2": 2}, {"k1": 1, "k2": 2}])
def test_writes_of_two_threads_at_the_same_time_may_survive_in_any_order(seen: dict[str, int]) -> None:
    oracle = Oracle()
    oracle.issued(0, Write(1, (1,)))
    oracle.issued(1, Write(2, (2,)))
    oracle.returned(0, durable=False)
    oracle.returned(1, durable=False)
    assert oracle.check(rows(**seen)) == []


# What a parent knows of a table beside its rows is judged, too: the feed, and which shard has which transaction.

WHO = (1, 0)


def shown(number: int) -> Shown:
    return Shown(number, number, 0)


def wrote(record: TableRecord, number: int, *keys: int) -> None:
    record.hear(("issued", WHO, number, {"s": Write(number, keys, values=(shown(number),) * len(keys))}))
    record.hear(("returned", WHO, number, True))


def looked(record: TableRecord, **rows: int) -> None:
    record.hear(("rows", {"s": [Row(int(name[1:]), shown(number)) for name, number in rows.items()]}))


def fed(record: TableRecord, changes: Sequence[tuple[int, int, int, str]]) -> None:
    record.hear(("changes", changes))
    record.hear(("consumed",))


@pytest.fixture
def record() -> TableRecord:
    return TableRecord(CrashReport(), "make crash")


def test_a_feed_that_tells_what_was_written_is_well(record: TableRecord) -> None:
    wrote(record, 1, 7)
    wrote(record, 2, 7)
    looked(record, k7=2)
    fed(record, [(7, 1, 1, "u"), (7, 2, 2, "u")])


@pytest.mark.parametrize("strange", [(7, 9, 9, "u"), (7, 1, 2, "u"), (8, 1, 1, "u"), (7, 0, 0, "d")])
def test_change_without_a_write_is_seen_below_a_later_one(
    strange: tuple[int, int, int, str], record: TableRecord
) -> None:
    wrote(record, 1, 7)
    wrote(record, 2, 7)
    looked(record, k7=2)
    with pytest.raises(CrashFailure, match=r"I2.*changes .* that nobody asked for"):
        fed(record, [(7, 1, 1, "u"), strange, (7, 2, 2, "u")])


def test_what_two_sinks_wrote_both_is_written_twice(record: TableRecord) -> None:
    attempt = Attempt(STREAM, 5, 5, {"s": (7,)})
    for _ in range(2):
        record.hear(("tries", attempt))
    record.hear(("wrote", STREAM, 5, "s"))
    record.hear(("wrote", STREAM, 6, "s"))
    with pytest.raises(CrashFailure, match=r"I5.*second time"):
        record.hear(("wrote", STREAM, 5, "s"))


def test_what_a_killed_sink_wrote_is_not_written_again(record: TableRecord) -> None:
    record.hear(("tries", Attempt(STREAM, 5, 5, {"s": (7,)})))
    record.hear(("issued", ("sink", 1), 5, {"s": Write(5, (7,), values=(shown(5),))}))
    looked(record, k7=5)
    with pytest.raises(CrashFailure, match=r"I5.*second time"):
        record.hear(("wrote", STREAM, 5, "s"))


@pytest.mark.parametrize("landed", [False, True])
def test_look_settles_an_attempt_and_later_writes_change_nothing(landed: bool, record: TableRecord) -> None:
    attempt = Attempt("app", 5, 5, {"s": (7,)})
    record.hear(("tries", attempt))
    record.hear(("issued", WHO, 5, {"s": Write(5, (7,), values=(shown(5),))}))
    looked(record, **({"k7": 5} if landed else {}))
    wrote(record, 6, 7)
    looked(record, k7=6)
    [repeat] = record.repeats(sink=False)
    assert record.is_unknown(repeat.attempt)
    assert repeat.held == ({"s"} if landed else set())
    record.hear(("transacted", attempt))
    [repeat] = record.repeats(sink=False)
    assert not record.is_unknown(repeat.attempt)
    assert repeat.held == {"s"}


# A process of a proof that ends in a way which nobody planned is a broken promise, however well its rows are.

AT_A_POINT = Death("wal.before_put")


def aborts(pipe: Connection) -> None:
    pipe.send(("opened", 0.1))
    os.abort()


def aborts_when_done(pipe: Connection) -> None:
    pipe.send(("done",))
    os.abort()


def leaves(pipe: Connection) -> None:
    pipe.send(("opened", 0.1))
    os._exit(3)


def returns(pipe: Connection) -> None:
    pipe.send(("opened", 0.1))


def is_done(pipe: Connection) -> None:
    pipe.send(("done",))


def dies(pipe: Connection) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def talks_until_it_is_killed(pipe: Connection) -> None:
    while True:
        pipe.send(("opened", 0.1))
        time.sleep(0.1)


def says_nothing(pipe: Connection) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pause()


def aborts_in_a_table(life: TableLife, pipe: Connection) -> None:
    aborts(pipe)


def watched(*actors: Actor) -> CrashReport:
    report = CrashReport()

    def fail(what: str) -> None:
        raise CrashFailure(what)

    watch(actors, lambda _: None, fail, report)
    return report


STRANGE = [
    (aborts, NEVER, "status -6"),
    (aborts, AT_A_POINT, "status -6"),
    (aborts_when_done, NEVER, "status -6"),
    (leaves, NEVER, "status 3"),
    (returns, NEVER, "status 0"),
    (dies, NEVER, "status -9"),
]


@pytest.mark.parametrize(("work", "death", "told"), STRANGE)
def test_an_end_that_nobody_planned_is_told(work: Callable[..., None], death: Death, told: str) -> None:
    with pytest.raises(CrashFailure, match=told):
        watched(Actor(start(work), death, lingers=False))


def test_a_planned_kill_and_a_life_to_its_end_are_well() -> None:
    report = watched(Actor(start(dies), AT_A_POINT), Actor(start(is_done), lingers=False))
    assert (report.lives, report.kills) == (2, 1)
    report = watched(Actor(start(says_nothing), Death("while writing", "start", 0.05)))
    assert (report.lives, report.kills) == (1, 1)


@pytest.mark.timeout(20)
def test_a_silent_process_is_told_although_another_one_talks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "DEADLINE_SECONDS", 0.5)
    with pytest.raises(CrashFailure, match="nothing was heard of a process"):
        watched(Actor(start(talks_until_it_is_killed), lingers=False), Actor(start(says_nothing), lingers=False))


@pytest.mark.skipif(profile() != "ci", reason="the proofs have other limits")
def test_a_silent_process_shows_its_stack_before_its_test_runs_out_of_time(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) > deaths.DEADLINE_SECONDS + 30


@pytest.mark.parametrize("run", [run_crashes, run_takeovers])
def test_a_table_whose_processes_abort_is_told_with_the_command(run: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(CrashFailure, match=r"I12(.|\n)*status -6(.|\n)*make crash"):
        run(str(tmp_path), 1, 1, target=aborts_in_a_table)


def test_a_message_that_nobody_knows_is_told() -> None:
    record = TableRecord(CrashReport(), "make crash")
    for tag in ("dies", "done", "fenced", "stops"):
        record.hear((tag,))
    with pytest.raises(CrashFailure, match="'retruned'"):
        record.hear(("retruned", 1, 2, True))


# Which orders of epochs a log may have: the one rule that audits of shards and of logs under faults share.


def log(text: str) -> list[WalEntry]:
    """`1 2s 2`: an entry with rows of epoch 1, the sentinel of epoch 2, rows of epoch 2."""
    written = enumerate(text.split(), 1)
    return [WalEntry(position, int(word.rstrip("s")), None, (), word.endswith("s")) for position, word in written]


@pytest.mark.parametrize("text", ["", "1 1", "1 2s 2 3s", "1 2s 4s 4", "2s 1s", "1 3s 2s 3", "1 3s 3 2s 3"])
def test_epochs_grow_and_a_sentinel_may_come_late(text: str) -> None:
    assert list(epoch_faults(log(text))) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 2s 1", "position 3: epoch 1 wrote above epoch 2"),
        ("1 2s 3s 2", "position 4: epoch 2 wrote above epoch 3"),
        ("1 3s 2s 2", "position 4: epoch 2 wrote above epoch 3"),
        ("1 2", "position 2: epoch 2 wrote before its sentinel"),
        ("1 2 2s", "position 2: epoch 2 wrote before its sentinel"),
        ("1 2s 2 2s", "position 4: epoch 2 has a second sentinel"),
    ],
)
def test_rows_of_an_epoch_lie_between_its_sentinel_and_the_next(text: str, told: str) -> None:
    assert list(epoch_faults(log(text))) == [told]
