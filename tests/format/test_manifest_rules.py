"""Every numbered rule of a manifest commit refuses its breach, and no honest step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal.errors import InvalidInputError
from lance_memwal.log.invariants import check_manifest_transition
from lance_memwal.types import ShardManifest, ShardStatus, SsTable
from tests.kit.manifests import manifest_faults

SHARD = "0a0b0c0d-1112-4314-8516-1718191a1b1c"


def sstable(generation: int, token: str = "00000000") -> SsTable:
    return SsTable(generation, f"{token}_gen_{generation}")


OLD = ShardManifest(
    version=9,
    shard_id=SHARD,
    shard_spec_id=1,
    shard_field_entries=(("bucket", b"\0\0\0\0"),),
    writer_epoch=4,
    replay_after_wal_entry_position=20,
    wal_entry_position_last_seen=21,
    current_generation=6,
    sstables=(sstable(3), sstable(4), sstable(5)),
)
CLAIM = replace(OLD, version=10, writer_epoch=5)
FLUSH = replace(
    OLD,
    version=10,
    replay_after_wal_entry_position=25,
    wal_entry_position_last_seen=25,
    current_generation=7,
    sstables=(*OLD.sstables, sstable(6)),
)
TRIM = replace(OLD, version=10, sstables=(sstable(5),))
FIRST = ShardManifest(version=1, shard_id=SHARD, writer_epoch=1)


@pytest.mark.parametrize(
    "new",
    [
        CLAIM,
        FLUSH,
        TRIM,
        replace(OLD, version=10),
        replace(OLD, version=10, wal_entry_position_last_seen=30),
        replace(OLD, version=10, status=ShardStatus.SEALED),
        replace(OLD, version=10, sstables=()),
        replace(FLUSH, sstables=(sstable(5), sstable(6))),
        replace(FLUSH, sstables=(sstable(6),)),
        replace(FLUSH, replay_after_wal_entry_position=20, wal_entry_position_last_seen=21),
        replace(FLUSH, sstables=(*OLD.sstables, sstable(6), sstable(7)), current_generation=8),
    ],
    ids=[
        "claim",
        "flush",
        "trim",
        "nothing",
        "last-seen",
        "seal",
        "drain",
        "flush+trim",
        "flush+drain",
        "flush-no-entries",
        "flush-of-two",
    ],
)
def test_an_honest_step_passes(new: ShardManifest) -> None:
    check_manifest_transition(OLD, new)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_blank_first_manifest_passes(epoch: int) -> None:
    check_manifest_transition(None, replace(FIRST, writer_epoch=epoch, shard_spec_id=1))


BREACHES: list[tuple[str, ShardManifest, dict[str, Any]]] = [
    ("I-1", FLUSH, {"version": 9}),
    ("I-1", FLUSH, {"version": 11}),
    ("I-1", CLAIM, {"version": 12}),
    ("I-2", FLUSH, {"shard_id": SHARD.replace("0a", "0b")}),
    ("I-2", TRIM, {"shard_spec_id": 2}),
    ("I-2", TRIM, {"shard_spec_id": 0}),
    ("I-2", TRIM, {"shard_field_entries": ()}),
    ("I-3", FLUSH, {"writer_epoch": 3}),
    ("I-3", CLAIM, {"writer_epoch": 6}),
    ("I-4", CLAIM, {"replay_after_wal_entry_position": 21}),
    ("I-4", CLAIM, {"wal_entry_position_last_seen": 22}),
    ("I-4", CLAIM, {"current_generation": 7}),
    ("I-4", CLAIM, {"sstables": (sstable(5),)}),
    ("I-4", CLAIM, {"status": ShardStatus.SEALED}),
    ("I-4", FLUSH, {"writer_epoch": 5}),
    ("I-5", FLUSH, {"replay_after_wal_entry_position": 19}),
    ("I-5", FLUSH, {"wal_entry_position_last_seen": 20}),
    ("I-5", FLUSH, {"wal_entry_position_last_seen": 24}),
    ("I-5", TRIM, {"replay_after_wal_entry_position": 21}),
    ("I-6", TRIM, {"current_generation": 7}),
    ("I-6", TRIM, {"current_generation": 5}),
    ("I-6", FLUSH, {"current_generation": 6}),
    ("I-6", FLUSH, {"current_generation": 8}),
    ("I-7", FLUSH, {"sstables": (*OLD.sstables, sstable(7)), "current_generation": 8}),
    ("I-7", FLUSH, {"sstables": (sstable(2), *OLD.sstables)}),
    ("I-7", FLUSH, {"sstables": (*OLD.sstables, sstable(6), sstable(8)), "current_generation": 9}),
    ("I-7", FLUSH, {"sstables": (*OLD.sstables, sstable(6), sstable(6))}),
    ("I-8", TRIM, {"sstables": (sstable(3), sstable(5))}),
    ("I-8", TRIM, {"sstables": (sstable(3), sstable(4))}),
    ("I-8", TRIM, {"sstables": (sstable(5, "ffffffff"),)}),
    ("I-8", TRIM, {"sstables": (replace(sstable(5), physical_rows=1),)}),
    ("I-8", TRIM, {"sstables": (sstable(5), sstable(4), sstable(3))}),
    ("I-8", TRIM, {"sstables": (sstable(5), sstable(5))}),
    ("I-8", FLUSH, {"sstables": (sstable(6), *OLD.sstables)}),
    ("I-9", FLUSH, {"sstables": (*OLD.sstables, SsTable(6, "../00000000_gen_6"))}),
    ("I-9", FLUSH, {"sstables": (*OLD.sstables, SsTable(6, "00000000_gen_7"))}),
    ("I-10", TRIM, {"status": 9}),
]


@pytest.mark.parametrize(
    ("rule", "step", "change"), BREACHES, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(BREACHES)]
)
def test_a_breach_is_refused_by_its_rule(rule: str, step: ShardManifest, change: dict[str, Any]) -> None:
    check_manifest_transition(OLD, step)
    with pytest.raises(InvalidInputError, match=f"rule {rule}:"):
        check_manifest_transition(OLD, replace(step, **change))


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("I-1", {"version": 2}),
        ("I-11", {"writer_epoch": 2}),
        ("I-11", {"replay_after_wal_entry_position": 1}),
        ("I-11", {"current_generation": 2}),
        ("I-11", {"sstables": (sstable(1),)}),
        ("I-11", {"status": ShardStatus.SEALED}),
    ],
)
def test_a_first_manifest_that_is_not_blank_is_refused(rule: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"rule {rule}:"):
        check_manifest_transition(None, replace(FIRST, **change))


def test_a_shard_id_that_is_no_uuid_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="UUID"):
        check_manifest_transition(None, replace(FIRST, shard_id="../x"))


def test_a_sealed_shard_is_neither_reopened_nor_claimed_but_may_be_drained() -> None:
    sealed = replace(OLD, status=ShardStatus.SEALED)
    check_manifest_transition(sealed, replace(TRIM, status=ShardStatus.SEALED))
    with pytest.raises(InvalidInputError, match="rule I-10:"):
        check_manifest_transition(sealed, TRIM)
    with pytest.raises(InvalidInputError, match="rule I-4:"):
        check_manifest_transition(sealed, replace(CLAIM, status=ShardStatus.SEALED))


def test_a_spec_id_and_field_entries_may_be_set_once() -> None:
    manual = replace(OLD, shard_spec_id=0, shard_field_entries=())
    check_manifest_transition(manual, replace(OLD, version=10))
    with pytest.raises(InvalidInputError, match="rule I-4:"):
        check_manifest_transition(manual, CLAIM)


def test_an_odd_manifest_of_another_implementation_can_be_claimed_flushed_and_trimmed() -> None:
    odd = replace(
        OLD,
        sstables=(sstable(5), sstable(1), sstable(3)),
        replay_after_wal_entry_position=30,
        wal_entry_position_last_seen=2,
    )
    check_manifest_transition(odd, replace(odd, version=10, writer_epoch=5))
    grown = (*odd.sstables, sstable(6))
    check_manifest_transition(odd, replace(odd, version=10, sstables=grown, current_generation=7))
    check_manifest_transition(odd, replace(odd, version=10, sstables=(sstable(3), sstable(5))))
    check_manifest_transition(odd, replace(odd, version=10, sstables=(sstable(5), sstable(3))))
    with pytest.raises(InvalidInputError, match="rule I-8:"):
        check_manifest_transition(odd, replace(odd, version=10, sstables=(sstable(3), sstable(1), sstable(5))))


@given(st.lists(st.sampled_from(["claim", "flush", "trim", "seen"]), max_size=30), st.integers(0, 3))
def test_a_life_of_honest_steps_keeps_the_list_whole(steps: list[str], removed: int) -> None:
    manifest = FIRST
    for step in steps:
        new = replace(manifest, version=manifest.version + 1)
        if step == "claim":
            new = replace(new, writer_epoch=new.writer_epoch + 1)
        elif step == "flush":
            cursor, generation = new.wal_entry_position_last_seen + 2, new.current_generation
            new = replace(new, replay_after_wal_entry_position=cursor, wal_entry_position_last_seen=cursor)
            new = replace(new, sstables=(*new.sstables, sstable(generation)), current_generation=generation + 1)
        elif step == "trim":
            new = replace(new, sstables=new.sstables[removed:])
        else:
            new = replace(new, wal_entry_position_last_seen=new.wal_entry_position_last_seen + 1)
        check_manifest_transition(manifest, new)
        assert manifest_faults(new) == []
        manifest = new


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sstables": (sstable(5), sstable(4))}, "ascending"),
        ({"sstables": (sstable(3), sstable(5))}, "gap"),
        ({"sstables": (sstable(5), sstable(5, "ffffffff"))}, "twice"),
        ({"current_generation": 5}, "current one is 5"),
        ({"wal_entry_position_last_seen": 19}, "below the replay cursor"),
    ],
)
def test_each_oddity_of_a_manifest_is_named(change: dict[str, Any], fault: str) -> None:
    assert manifest_faults(OLD) == []
    assert any(fault in found for found in manifest_faults(replace(OLD, **change)))
