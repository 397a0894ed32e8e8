"""The kinds of epoch, in every order of store calls that a small bound allows; and each rule left out, which must be found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.harness.profile import scaled
from tests.model_check.shard_model import NOTHING, Entry, Process, Rule, Scenario, explore

FLUSH = Process("flush", "")


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
BULK_TAKEN_OVER = Scenario("a bulk beside a claim", (bulk("b1"), bulk("b1"), writer("w1")), trims=2)
OWNERS_BULK = Scenario("a bulk in an exclusive epoch", (Process("write_bulk", "b1"), append("t1")), trims=2)
SEALED_BEFORE = Scenario(
    "a seal of an older epoch", (append("t1"), FLUSH), log=OLD_SEAL, epoch=2, acknowledged=frozenset({"t0"})
)
SLEPT = Scenario("a sleeper and its repeat", (SLEEPER, append("t1"), FLUSH), log=SEALED, acknowledged=frozenset({"t0"}))

SLOW_CLAIM = Scenario("a slow claim beside a bulk", (writer(), bulk("b1"), bulk("b1")), 0, 0, 0, takes_over=True)
SHARED = Scenario("a client of two owners", (writer("c1"), writer("c1")), lates=0)
TWO_WRITERS = Scenario("two writers, and collection", (writer("w1"), writer("w2")), 0, 0, 3)
CONSUMED = Scenario(
    "a consumer beside an append and a flush", (append("t1"), Process("consume", "", "follow"), FLUSH), 0, 0, 3
)
COMPACTED = Scenario("a flush, compacted", (append("t1"), FLUSH), trims=2)

LIVES_ON = Scenario("a stream beside a repeat and a flush", (stream("t1", "t2"), append("t2"), FLUSH), 0, 0)
LIVES_ON_BULK = Scenario("a stream beside a bulk", (stream("t1", "t2"), bulk("b1")))
LIVES_ON_WRITER = Scenario("a stream beside a writer", (stream("t1", "t2"), writer("w1")), takes_over=True)

NEWER = (SHARED, TWO_WRITERS, CONSUMED, COMPACTED)
WHOLE = (
    *NEWER,
    REPEAT,
    replace(APPENDS, crashes=0),
    BULK,
    WRITER,
    WRITER_FLUSH,
    OWNERS_BULK,
    SEALED_BEFORE,
    SLEPT,
    LIVES_ON,
)
LARGE = (
    *WHOLE,
    SLOW_CLAIM,
    APPENDS,
    BULK_REPEAT,
    TAKEN_OVER,
    BULK_TAKEN_OVER,
    LIVES_ON_BULK,
    LIVES_ON_WRITER,
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

FOUND_IN = {
    Rule.CONFIRM_AFTER_LOG: SLEPT,
    Rule.FORGET_UNCONFIRMED: SLEPT,
    Rule.CARRY_TRANSACTION: REPEAT,
    Rule.LOOK_AFTER_CREATE: APPENDS,
    Rule.AGAIN_FROM_MAP: APPENDS,
    Rule.READ_WHAT_IS_MET: LIVES_ON,
    Rule.JOIN_ONLY_JOINT: WRITER,
    Rule.ENTRY_OF_EPOCH: WRITER_FLUSH,
    Rule.SEAL_BEFORE_FLUSH: APPENDS,
    Rule.SEAL_OF_OWN_EPOCH: SEALED_BEFORE,
    Rule.SEAL_ONLY_ROWS: REPEAT,
    Rule.MARK_BEFORE_BULK: BULK,
    Rule.HELP_FIRST: BULK,
    Rule.BULK_COUNTS_DECIDED: BULK_REPEAT,
    Rule.BULK_ONE_MARK: OWNERS_BULK,
    Rule.FEED_LISTED_PATH: BULK_TAKEN_OVER,
    Rule.FEED_SAME_GENERATION: BULK_TAKEN_OVER,
    Rule.JOINT_IF_PUBLISHED: WRITER,
    Rule.JOINT_IF_DECIDED: WRITER,
    Rule.OWNER_LEAVES_OUT: SLOW_CLAIM,
    Rule.OWNER_KNOWS_CLIENTS: SHARED,
    Rule.COLLECT_FLUSHED: TWO_WRITERS,
    Rule.KEEP_SENTINELS: TWO_WRITERS,
    Rule.KEEP_NEWEST_MAP: REPEAT,
    Rule.KEEP_FOR_CONSUMERS: CONSUMED,
    Rule.TRIM_COMPACTED: COMPACTED,
}


@pytest.mark.scaled
def test_no_order_loses_doubles_or_invents_a_row() -> None:
    scenarios, most = scaled(ci=(WHOLE, 100_000), prove=(LARGE, 500_000))
    for scenario in scenarios:
        walk = explore(scenario, most=most)
        assert walk.broken is None, f"{scenario.name}: {walk.broken.what}\n" + "\n".join(walk.broken.trace)
        assert walk.is_whole or scenario not in WHOLE, f"{scenario.name}: more than {most} worlds"


@pytest.mark.parametrize("rule", Rule)
def test_a_rule_that_is_left_out_is_found(rule: Rule) -> None:
    walk = explore(FOUND_IN[rule], frozenset({rule}), most=100_000)
    assert walk.broken is not None, f"nothing was found in {walk.worlds} worlds"
