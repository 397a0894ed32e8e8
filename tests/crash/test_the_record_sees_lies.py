"""What a parent knows of a table beside its rows is judged, too: the feed, and which shard has which transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.harness.crash_report import CrashFailure, CrashReport
from tests.harness.oracle import Row, Write
from tests.harness.table_plan import STREAM, Attempt
from tests.harness.table_record import TableRecord
from tests.harness.table_shapes import Shown

WHO = (1, 0)


def shown(number: int) -> Shown:
    return Shown(number, number, 0)


def wrote(record: TableRecord, number: int, *keys: int) -> None:
    """One shard, `s`, takes these rows, and says so."""
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
def test_a_change_that_nobody_asked_for_is_seen_although_a_later_one_hides_it(
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
def test_a_look_tells_what_became_of_an_attempt_and_later_writes_change_nothing(
    landed: bool, record: TableRecord
) -> None:
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
