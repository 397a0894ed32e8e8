"""The kinds of epoch, in every order of store calls that a small bound allows; and each rule left out, which must be found."""

from dataclasses import replace

import pytest

from tests.harness.profile import scaled
from tests.model_check.engine import Walk, explore
from tests.model_check.shard_model import Model
from tests.model_check.worlds import NOTHING, Entry, Manifest, Process, Rule, Scenario

FLUSH = Process("flush", "")
COMPACT = Process("compact", "", "fold")
CONSUMER = Process("consume", "", "stand")
OWNER = Process("write_for", "")  # claims, replays, writes what clients send, and leaves


def append(txn: str) -> Process:
    return Process("append", txn)


def stream(txn: str, *later: str) -> Process:
    """A sink that lives on: it makes its later appends from what it knows."""
    return Process("append", txn, later=later)


def bulk(txn: str) -> Process:
    return Process("bulk", txn)


def writer(txn: str = "") -> Process:
    """A writer with a memory: claims, replays, writes a row, flushes, and leaves a joint mark."""
    return Process("write", txn)


OLD_SEAL = (  # a sink sealed generation 1 and died; another one claimed the next joint epoch
    Entry(1, "s", full=NOTHING, joint=True),
    Entry(1, "r", 1, "t0", full=NOTHING, joint=True),
    Entry(1, "x", 1, full=frozenset({"t0"}), joint=True),
    Entry(2, "s", full=frozenset({"t0"}), joint=True),
)
SEALED = (
    Entry(1, "s", full=NOTHING, joint=True),
    Entry(1, "r", 1, "t0", full=NOTHING, joint=True),
    Entry(1, "x", 1, full=frozenset({"t0"}), joint=True),
)
SLEEPER = Process("append", "t1", "create", position=2, entry=Entry(1, "r", 1, "t1", full=NOTHING, joint=True))

REPEAT = Scenario("a transaction and its repeat beside a flush", (append("t1"), append("t1"), FLUSH))
APPENDS = Scenario("two appends beside a flush", (append("t1"), append("t2"), FLUSH))
BULK = Scenario("an append beside a bulk", (append("t1"), bulk("b1")))
BULK_REPEAT = Scenario("a bulk and its repeat beside an append", (append("t1"), bulk("b1"), bulk("b1")), crashes=0)
WRITER = Scenario("a writer comes and goes", (append("t1"), writer("w1")), takes_over=True)
WRITER_FLUSH = Scenario("a writer beside an append and a flush", (append("t1"), writer("w1"), FLUSH), 0, 0, 0)
TAKEN_OVER = Scenario("a writer is taken over", (append("t1"), writer("w1"), FLUSH), takes_over=True, max_entries=6)
BULK_TAKEN_OVER = Scenario("a bulk beside a claim", (bulk("b1"), bulk("b1"), writer("w1"), COMPACT))
BULK_CALMLY = replace(BULK_TAKEN_OVER, crashes=0, lates=0, collections=0)
OWNERS_BULK = Scenario("a bulk in an exclusive epoch", (Process("write_bulk", "b1"), append("t1")))
SEALED_BEFORE = Scenario(
    "a seal of an older epoch", (append("t1"), FLUSH), log=OLD_SEAL, epoch=2, acknowledged=frozenset({"t0"})
)
SLEPT = Scenario("a sleeper and its repeat", (SLEEPER, append("t1"), FLUSH), log=SEALED, acknowledged=frozenset({"t0"}))

SLOW_CLAIM = Scenario("a slow claim beside a bulk", (writer(), bulk("b1"), bulk("b1")), 0, 0, 0, takes_over=True)
TWO_WRITERS = Scenario("two writers, and collection", (writer("w1"), writer("w2")), 0, 0, 3)
LATE_WRITERS = Scenario("two writers, a crash and a late put", (writer("w1"), writer("w2")))
FORWARDED = Scenario("a client of two owners", (OWNER, OWNER, Process("ask", "c1", "ask")), 1, 1, 0)
CONSUMED = Scenario("a consumer beside an append and a flush", (append("t1"), CONSUMER, FLUSH), 0, 0, 3)
FLUSHED = (
    Entry(1, "s", full=NOTHING, joint=True),
    Entry(1, "r", 1, "t0", full=NOTHING, joint=True),
    Entry(1, "x", 1, full=frozenset({"t0"}), joint=True),
    Entry(1, "r", 2, "t1", full=frozenset({"t0"}), joint=True),
)
BEGINS = Scenario(
    "a consumer begins beside collection",
    (CONSUMER, append("t2")),
    lates=0,
    log=FLUSHED,
    flushed=Manifest(2, 1, 3, 2, ((1, "sst", ("t0",)),)),
    acknowledged=frozenset({"t0", "t1"}),
)
COMPACTED = Scenario("a flush, and a compaction", (append("t1"), FLUSH, COMPACT))
TWO_COMPACTORS = Scenario(
    "two compactors", (COMPACT, COMPACT), log=FLUSHED, flushed=BEGINS.flushed, acknowledged=BEGINS.acknowledged
)

LIVES_ON = Scenario("a stream beside a repeat and a flush", (stream("t1", "t2"), append("t2"), FLUSH), 0, 0)
LIVES_ON_BULK = Scenario("a stream beside a bulk", (stream("t1", "t2"), bulk("b1")))
LIVES_ON_WRITER = Scenario("a stream beside a writer", (stream("t1", "t2"), writer("w1")), takes_over=True)

WHOLE = (
    TWO_WRITERS,
    LATE_WRITERS,
    FORWARDED,
    CONSUMED,
    BEGINS,
    COMPACTED,
    TWO_COMPACTORS,
    REPEAT,
    replace(APPENDS, crashes=0, collections=1),
    BULK,
    WRITER,
    WRITER_FLUSH,
    OWNERS_BULK,
    SEALED_BEFORE,
    replace(SLEPT, collections=1),
    LIVES_ON,
)
LARGE = (
    *WHOLE,
    APPENDS,
    SLEPT,
    LIVES_ON_BULK,
    LIVES_ON_WRITER,
    replace(OWNERS_BULK, name="a bulk in an exclusive epoch, compacted", processes=(*OWNERS_BULK.processes, COMPACT)),
    replace(CONSUMED, name="a consumer beside writes, with a crash and a late put", crashes=1, lates=1),
    replace(FORWARDED, name="a client of two owners, with collection", collections=2),
)
BOUNDED = (  # they have more worlds than are walked: those that are far were never seen
    SLOW_CLAIM,
    BULK_REPEAT,
    TAKEN_OVER,
    BULK_TAKEN_OVER,
    Scenario("a stream beside flushes", (stream("t1", "t2", "t3"), FLUSH, FLUSH)),
    Scenario("two streams beside a flush", (stream("t1", "t2"), stream("t2", "t3"), FLUSH)),
    Scenario("a repeat beside two flushes", (append("t1"), append("t1"), FLUSH, FLUSH)),
    Scenario("three appends beside a flush", (append("t1"), append("t2"), append("t1"), FLUSH)),
    Scenario("a writer beside a repeat", (append("t1"), append("t1"), writer("w1")), takes_over=True),
    Scenario("two writers beside an append", (append("t1"), writer("w1"), writer("w2")), takes_over=True, crashes=0),
    Scenario(
        "a writer beside appends and a flush", (append("t1"), append("t2"), writer(), FLUSH), 0, 0, takes_over=True
    ),
)
_NEAREST = 500_000

MISSED = "a consumer missed an entry"
FOUND_IN = {  # where each rule is missed, and what is broken first
    Rule.CONFIRM_AFTER_LOG: (SLEPT, "lost: ['t1']"),
    Rule.FORGET_UNCONFIRMED: (SLEPT, "lost: ['t1']"),
    Rule.CARRY_TRANSACTION: (REPEAT, "doubled: ['t1', 't1']"),
    Rule.LOOK_AFTER_CREATE: (APPENDS, "lost: ['t2']"),
    Rule.AGAIN_FROM_MAP: (APPENDS, "lost: ['t2']"),
    Rule.READ_WHAT_IS_MET: (LIVES_ON, "doubled: ['t1', 't2', 't2']"),
    Rule.JOIN_ONLY_JOINT: (WRITER, "lost: ['t1']"),
    Rule.ENTRY_OF_EPOCH: (WRITER_FLUSH, "lost: ['w1']"),
    Rule.SEAL_BEFORE_FLUSH: (APPENDS, "lost: ['t2']"),
    Rule.SEAL_OF_OWN_EPOCH: (SEALED_BEFORE, "lost: ['t1']"),
    Rule.SEAL_ONLY_ROWS: (REPEAT, "generation 2 follows 1"),
    Rule.MARK_BEFORE_BULK: (BULK, "doubled: ['b1', 'b1']"),
    Rule.HELP_FIRST: (BULK, "lost: ['t1']"),
    Rule.BULK_COUNTS_DECIDED: (BULK_REPEAT, "lost: ['b1']"),
    Rule.BULK_ONE_MARK: (OWNERS_BULK, "doubled: ['b1', 'b1']"),
    Rule.FEED_LISTED_PATH: (BULK_CALMLY, "the feed invents bulk0.0"),
    Rule.FEED_SAME_GENERATION: (BULK_CALMLY, "the feed invents bulk0.0"),
    Rule.JOINT_IF_PUBLISHED: (WRITER, "lost: ['t1']"),
    Rule.JOINT_IF_DECIDED: (WRITER, "lost: ['t1']"),
    Rule.OWNER_LEAVES_OUT: (SLOW_CLAIM, "doubled: ['b1', 'b1']"),
    Rule.OWNER_KNOWS_CLIENTS: (FORWARDED, "doubled: ['c1', 'c1']"),
    Rule.ANSWER_WRITTEN: (FORWARDED, "lost: ['c1']"),
    Rule.CLIENT_SAYS_WHO: (FORWARDED, "doubled: ['c1', 'c1']"),
    Rule.COLLECT_FLUSHED: (TWO_WRITERS, "lost: ['w1']"),
    Rule.KEEP_SENTINELS: (TWO_WRITERS, "lost: ['w1']"),
    Rule.KEEP_NEWEST_MAP: (REPEAT, "doubled: ['t1', 't1']"),
    Rule.KEEP_FOR_CONSUMERS: (CONSUMED, MISSED),
    Rule.PINS_AGAIN: (BEGINS, MISSED),
    Rule.ANNOUNCE_FIRST: (BEGINS, MISSED),
    Rule.FLOOR_BELOW_PINS: (BEGINS, MISSED),
    Rule.BEGIN_ABOVE_ANNOUNCED: (BEGINS, MISSED),
    Rule.RECORD_BEFORE_READING: (BEGINS, MISSED),
    Rule.TRIM_COMPACTED: (COMPACTED, "lost: ['t1']"),
    Rule.ROWS_AND_MARK: (COMPACTED, "doubled: ['t1', 't1']"),
    Rule.COMPACT_ON_READ: (TWO_COMPACTORS, "doubled: ['t0', 't0', 't1']"),
}


@pytest.mark.scaled
@pytest.mark.parametrize("scenario", scaled(ci=WHOLE, prove=LARGE), ids=lambda scenario: scenario.name)
def test_no_order_loses_doubles_or_invents_a_row(scenario: Scenario) -> None:
    walk = explore(Model(scenario), most=scaled(ci=100_000, prove=_NEAREST))
    _refuse_broken(walk)
    assert walk.is_whole, f"only the nearest {walk.worlds} worlds were walked: make it smaller, or name it in BOUNDED"


@pytest.mark.prove
@pytest.mark.parametrize("scenario", BOUNDED, ids=lambda scenario: scenario.name)
def test_no_order_among_the_nearest_worlds_loses_doubles_or_invents_a_row(scenario: Scenario) -> None:
    """Not every order: the walk stops, and must say so."""
    walk = explore(Model(scenario), most=_NEAREST)
    _refuse_broken(walk)
    assert not walk.is_whole, f"all {walk.worlds} worlds were walked: name it in LARGE"


def _refuse_broken(walk: Walk) -> None:
    assert walk.broken is None, f"{walk.broken.what}\n" + "\n".join(walk.broken.trace)


def test_a_walk_that_stops_says_so() -> None:
    whole = explore(Model(TWO_WRITERS))
    assert whole.is_whole
    assert explore(Model(TWO_WRITERS), most=whole.worlds).is_whole
    assert not explore(Model(TWO_WRITERS), most=whole.worlds - 1).is_whole


@pytest.mark.parametrize("rule", Rule)
def test_a_rule_that_is_left_out_is_found(rule: Rule) -> None:
    scenario, what = FOUND_IN[rule]
    walk = explore(Model(scenario, frozenset({rule})), most=100_000)
    assert walk.broken is not None, f"nothing was found in {walk.worlds} worlds"
    assert walk.broken.what == what, "\n".join(walk.broken.trace)
