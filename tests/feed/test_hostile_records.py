"""Records of consumers, checkpoints and floors: whatever lies among them is named and the rest goes on; a lost answer
writes none twice.
"""

import json
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.shards import Floor
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.sequenced import MAX_RECORD_BYTES, Record, Records
from lance_memwal.upkeep.consumer_records import ConsumerRecord, consumer_record
from tests.kit.lost_answers import ANSWERS, Answer, losing
from tests.kit.tables import create

SHARD = mw.shard_id_for(mw.Unsharded())
CONSUMER = paths.record_dir(paths.CONSUMERS_DIR, "x")
CHECKPOINT = paths.record_dir(paths.CHECKPOINTS_DIR, "cp")
FLOOR = paths.floor_dir(SHARD)
NEXT = 99  # above every record that the table has
BEYOND = 10**30
Plant = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a consumer `x`, a checkpoint `cp` and a floor."""
    place = tmp_path_factory.mktemp("whole") / "t"
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = mw.create_table(str(place), schema, primary_key="id", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": 1}])
        writer.flush()
        table.compact()
        writer.put([{"id": 2, "v": 1}])
        consumer = table.consumers.open("x")
        next(iter(consumer))
        consumer.commit()
        table.checkpoints.create("cp")
    table.gc(grace_seconds=0)
    assert Records(resolve(str(place)).store, FLOOR).newest() is not None
    return place


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "t"))


def written(directory: str, **changes: Any) -> Plant:
    """A next record like the newest one, but for these changes."""

    def plant(place: Path) -> None:
        newest = Records(resolve(str(place)).store, directory).newest()
        assert newest is not None
        (place / directory / f"{NEXT}.json").write_text(json.dumps({**newest.value, **changes}))

    return plant


def all_calls(table: mw.Table) -> dict[str, Callable[[], object]]:
    return {
        "consumers": table.consumers.list,
        "consumer": lambda: list(table.consumers.open("x", until="now")),
        "checkpoints": table.checkpoints.list,
        "at": lambda: table.at("cp").count_rows(),
        "new consumer": lambda: list(table.consumers.open("new", until="now")),
        "stats": table.stats,
        "gc": lambda: table.gc(grace_seconds=0),
        "maintain": lambda: table.maintain(grace_seconds=0),
        "verify": table.verify,
    }


# ------------------------------------------------------------------------------------------------------------ stray names


@pytest.mark.parametrize("name", [".DS_Store", "a b", "-x", "n" * 255, b"\xff\xfe"])
@pytest.mark.parametrize("directory", [paths.CONSUMERS_DIR, paths.CHECKPOINTS_DIR])
def test_a_stray_name_among_the_names_stops_nobody(place: Path, directory: str, name: str | bytes) -> None:
    os.makedirs(os.path.join(os.fsencode(place / directory), os.fsencode(name)))
    table = mw.open_table(str(place))
    for call in all_calls(table).values():
        call()
    assert {info.name for info in table.consumers.list()} == {"x", "new"}
    assert [checkpoint.name for checkpoint in table.checkpoints.list()] == ["cp"]
    assert table.verify().ok


# ------------------------------------------------------------------------------------------------------- what records say

DAMAGED_CONSUMERS: dict[str, Plant] = {
    "a time that no calendar has": written(CONSUMER, ms=BEYOND),
    "an age beyond 64 bits": written(CONSUMER, max_age_ms=BEYOND),
    "an age beyond 64 bits, expired": written(CONSUMER, max_age_ms=BEYOND, state="expired"),
    "an epoch beyond 64 bits": written(CONSUMER, epoch=BEYOND),
    "a position beyond 64 bits": written(CONSUMER, shards={SHARD: 1 << 64}),
    "no snapshot": written(CONSUMER, snapshot="garbage"),
    "a snapshot beyond 64 bits": written(CONSUMER, snapshot=f"memwal1:-:{1 << 64}"),
    "a directory": lambda place: (place / CONSUMER / f"{NEXT}.json").mkdir(),
    "a link": lambda place: (place / CONSUMER / f"{NEXT}.json").symlink_to("/etc/hostname"),
    "a pipe": lambda place: os.mkfifo(place / CONSUMER / f"{NEXT}.json"),
}
DAMAGED_CHECKPOINTS: dict[str, Plant] = {
    "a time that no calendar has": written(CHECKPOINT, created_ms=BEYOND),
    "a time just after the last day": written(CHECKPOINT, created_ms=253_402_300_800_000),
    "an end that no calendar has": written(CHECKPOINT, expires_ms=BEYOND),
    "no snapshot": written(CHECKPOINT, snapshot="garbage"),
    "a base version beyond 64 bits": written(CHECKPOINT, snapshot=f"memwal1:-:{1 << 64}"),
    "a manifest beyond 64 bits": written(CHECKPOINT, snapshot=f"memwal1:-:1:ABEiM0RVRneImaq7zN3u_w.{1 << 64}.1.1"),
    "a directory": lambda place: (place / CHECKPOINT / f"{NEXT}.json").mkdir(),
}


@pytest.mark.parametrize(
    ("damage", "record", "calls"),
    [(damage, CONSUMER, ("consumers", "consumer", "gc", "stats")) for damage in DAMAGED_CONSUMERS]
    + [(damage, CHECKPOINT, ("checkpoints", "at", "gc")) for damage in DAMAGED_CHECKPOINTS],
)
def test_a_damaged_record_is_named_and_can_be_dropped(
    place: Path, damage: str, record: str, calls: tuple[str, ...]
) -> None:
    of_consumer = record == CONSUMER
    (DAMAGED_CONSUMERS if of_consumer else DAMAGED_CHECKPOINTS)[damage](place)
    table = mw.open_table(str(place))
    for name in calls:
        with pytest.raises(mw.CorruptDataError) as caught:
            all_calls(table)[name]()
        assert caught.value.path == f"{record}/{NEXT}.json", name
    assert [problem.where for problem in table.verify().problems] == [record]
    table.consumers.drop("x") if of_consumer else table.checkpoints.drop("cp")
    assert (table.consumers.list() if of_consumer else table.checkpoints.list()) == []
    assert table.verify().ok
    table.gc(grace_seconds=0)
    if of_consumer:
        assert sum(batch.num_rows for batch in table.consumers.open("x", until="now")) == 2
    else:
        table.checkpoints.create("cp")
        assert table.at("cp").count_rows() == 2


@pytest.mark.parametrize("said", [{"position": 1 << 64}, {"position": -1}, {"position": "1"}, {"announced": BEYOND}])
def test_a_floor_that_says_no_position_is_damaged(place: Path, said: dict[str, Any]) -> None:
    written(FLOOR, **said)(place)
    table = mw.open_table(str(place))
    with pytest.raises(mw.CorruptDataError, match=rf"{FLOOR}/{NEXT}\.json"):
        all_calls(table)["new consumer"]()
    assert FLOOR in {problem.where for problem in table.verify().problems}


def test_a_directory_in_the_place_of_a_floor_is_damage_and_no_race(place: Path) -> None:
    (place / FLOOR / f"{NEXT}.json").mkdir()
    table = mw.open_table(str(place))
    for name in ("new consumer", "at"):
        with pytest.raises(mw.CorruptDataError, match=rf"{FLOOR}/{NEXT}\.json"):
            all_calls(table)[name]()
    assert FLOOR in {problem.where for problem in table.verify().problems}


@pytest.mark.parametrize("directory", [CONSUMER, CHECKPOINT])
def test_a_newer_form_of_a_snapshot_is_unknown_and_says_where(place: Path, directory: str) -> None:
    written(directory, snapshot="memwal7:x")(place)
    with pytest.raises(mw.UnsupportedFormatError) as caught:
        mw.open_table(str(place)).gc(grace_seconds=0)
    assert caught.value.path == f"{directory}/{NEXT}.json"


@pytest.mark.parametrize(("directory", "group"), [(CONSUMER, "consumers"), (CHECKPOINT, "checkpoints")])
def test_the_last_number_of_all_is_named_since_no_record_can_follow_it(place: Path, directory: str, group: str) -> None:
    last = place / directory / f"{(1 << 63) - 1}.json"
    written(directory)(place)
    os.rename(place / directory / f"{NEXT}.json", last)
    table = mw.open_table(str(place))
    name = Path(directory).name
    with pytest.raises(mw.CorruptDataError, match=last.name):
        getattr(table, group).drop(name)
    last.unlink()
    getattr(table, group).drop(name)


def test_a_number_beyond_the_last_one_is_a_stray_name(place: Path) -> None:
    (place / CONSUMER / f"{1 << 63}.json").write_text("x")
    (place / CONSUMER / f"{'9' * 19}.json").write_text("x")
    table = mw.open_table(str(place))
    assert [info.name for info in table.consumers.list()] == ["x"]
    table.consumers.drop("x")


# ---------------------------------------------------------------------------------------------------------- what is honest


def test_a_consumer_may_be_silent_for_as_long_as_there_are_days(place: Path) -> None:
    table = mw.open_table(str(place))
    list(table.consumers.open("patient", until="now", max_age=timedelta.max))
    record = consumer_record(resolve(str(place)), "patient")
    assert record is not None
    assert timedelta(milliseconds=record.max_age_ms) > timedelta.max - timedelta(seconds=1)
    table.gc(grace_seconds=0)


def test_a_lifetime_that_ends_after_the_last_day_is_refused_before_anything_is_written(place: Path) -> None:
    table = mw.open_table(str(place))
    with pytest.raises(mw.InvalidInputError, match="lifetime"):
        table.checkpoints.create("ever", lifetime=timedelta.max)
    assert [checkpoint.name for checkpoint in table.checkpoints.list()] == ["cp"]
    table.checkpoints.create("ever", lifetime=timedelta(days=365_000))
    assert len(table.checkpoints.list()) == 2


# ------------------------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize("directory", [CONSUMER, CHECKPOINT, FLOOR])
def test_a_record_of_any_size_costs_no_memory(place: Path, directory: str) -> None:
    with (place / directory / f"{NEXT}.json").open("wb") as file:
        file.truncate(64 << 30)  # a hole: it takes no room on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(mw.CorruptDataError, match=f"{NEXT}.json"):
        all_calls(mw.open_table(str(place)))["at" if directory == FLOOR else "gc"]()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * MAX_RECORD_BYTES >> 10


def test_a_record_of_many_small_parts_is_refused_before_it_is_read(place: Path) -> None:
    (place / CONSUMER / f"{NEXT}.json").write_text('{"a":[' + "[[[]]]," * 300_000 + "[]]}")
    with pytest.raises(mw.CorruptDataError, match=f"{NEXT}.json"):
        mw.open_table(str(place)).consumers.list()


def test_the_widest_record_of_a_hundred_thousand_shards_fits(tmp_path: Path) -> None:
    widest = (1 << 64) - 1
    shards = [f"{number:08x}-ffff-4fff-8fff-ffffffffffff" for number in range(100_000)]
    point = f":{'A' * 22}.{widest}.{widest}.{widest}"
    snapshot = f"memwal1:0a1b2c3d:{widest}" + point * len(shards)
    cursor = (
        "c1,0a1b2c3d,"
        + ",".join(f"{shard}={10**19 - 1}+{10**19 - 1}" for shard in shards)
        + f"/{10**19 - 1}/{snapshot}"
    )
    record = ConsumerRecord(
        name="x",
        number=1,
        state="active",
        table_id=SHARD,
        reader=SHARD,
        epoch=widest,
        written_ms=1,
        max_age_ms=widest,
        cursor=cursor,
        shards=dict.fromkeys(shards, widest),
        snapshot=snapshot,
        begins=True,
    )
    records = Records(resolve(str(tmp_path)).store, CONSUMER)
    assert records.create(record)
    assert records.read(1).value["cursor"] == cursor


def test_a_record_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    records = Records(resolve(str(tmp_path)).store, CONSUMER)
    with pytest.raises(mw.InvalidInputError, match="shards"):
        records.create(Record(1, {"cursor": "x" * MAX_RECORD_BYTES}))
    assert records.newest() is None


def test_a_cursor_that_is_none_is_damage_of_its_record_and_can_be_dropped(place: Path) -> None:
    written(CONSUMER, cursor="garbage")(place)
    table = mw.open_table(str(place))
    with pytest.raises(mw.CorruptDataError, match=rf"path={CONSUMER}/{NEXT}\.json"):
        table.consumers.open("x", until="now")
    table.consumers.drop("x")
    list(table.consumers.open("x", until="now"))


# A record of a consumer, a checkpoint or a floor whose create lost its answer is written once, and its writer
# continues.

LOST_ANSWERS_CONSUMER = paths.record_dir(paths.CONSUMERS_DIR, "c")
LOST_ANSWERS_CHECKPOINT = paths.record_dir(paths.CHECKPOINTS_DIR, "p")
ROW = {"id": 1, "v": 1, "s": "a"}


def floor(table: mw.Table) -> Floor:
    return Floor(table.location, SHARD)


def names(table: mw.Table) -> list[str]:
    return [info.name for info in table.consumers.list()] + [checkpoint.name for checkpoint in table.checkpoints.list()]


@dataclass(frozen=True)
class Case:
    """A call that creates records in `directory`, what comes before it, and what holds after it."""

    directory: str
    call: Callable[[mw.Table], object]
    holds: Callable[[mw.Table], bool]
    before: Callable[[mw.Table], object] = lambda _: None


CASES = {
    "claim": Case(LOST_ANSWERS_CONSUMER, lambda t: t.consumers.open("c"), lambda t: names(t) == ["c"]),
    "take over": Case(
        LOST_ANSWERS_CONSUMER,
        lambda t: t.consumers.open("c"),
        lambda t: names(t) == ["c"],
        lambda t: t.consumers.open("c"),
    ),
    "drop consumer": Case(
        LOST_ANSWERS_CONSUMER,
        lambda t: t.consumers.drop("c"),
        lambda t: names(t) == [],
        lambda t: t.consumers.open("c"),
    ),
    "checkpoint": Case(LOST_ANSWERS_CHECKPOINT, lambda t: t.checkpoints.create("p"), lambda t: names(t) == ["p"]),
    "drop checkpoint": Case(
        LOST_ANSWERS_CHECKPOINT,
        lambda t: t.checkpoints.drop("p"),
        lambda t: names(t) == [],
        lambda t: t.checkpoints.create("p"),
    ),
    "announce": Case(FLOOR, lambda t: floor(t).announce(3, 1), lambda t: floor(t).announced() == 3),
    "raise": Case(FLOOR, lambda t: floor(t).raise_to(3), lambda t: floor(t).position() == 3),
}


def filled(uri: str) -> mw.Table:
    with create(uri) as table:
        table.put([ROW])
    return table


def prepared(uri: str, case: Case) -> mw.Table:
    case.before(table := filled(uri))
    return table


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", CASES)
def test_record_with_lost_answer_is_written_once(tmp_path: Path, name: str, answer: Answer) -> None:
    case = CASES[name]
    case.call(expected := prepared(str(tmp_path / "expected"), case))
    table = prepared(str(tmp_path / "t"), case)
    store, location = losing(table.uri, answer)
    store.prefix = case.directory
    if answer == "last error":
        with pytest.raises(mw.UnavailableError):
            case.call(mw.open_table(location))
    else:
        case.call(mw.open_table(location))
        numbers = [Records(t.location.store, case.directory).numbers() for t in (table, expected)]
        assert numbers[0] == numbers[1]
    assert store.prefix is None
    assert case.holds(table)
    table.maintain(grace_seconds=0)
    assert table.verify().ok
    assert case.holds(table)


@pytest.mark.parametrize("answer", ANSWERS)
def test_commit_of_consumer_with_lost_answer_counts(tmp_path: Path, answer: Answer) -> None:
    """A commit that raised an error may have landed: the next one continues from its own record."""
    table = filled(str(tmp_path / "t"))
    store, location = losing(table.uri, answer)
    reader = mw.open_table(location).consumers.open("c", until="now")
    assert sum(batch.num_rows for batch in reader) == 1
    store.prefix = LOST_ANSWERS_CONSUMER
    if answer == "last error":
        with pytest.raises(mw.UnavailableError):
            reader.commit()
    reader.commit()
    assert reader.lag() == 0
    assert list(table.consumers.open("c", until="now")) == []


def test_floor_raised_by_two_at_once_is_the_higher(tmp_path: Path) -> None:
    """Another process raises the floor on top of a create whose answer was lost."""
    table = create(str(tmp_path / "t"))
    store, location = losing(table.uri, "exists")
    store.prefix = FLOOR
    store.after = lambda: Floor(table.location, SHARD).raise_to(7)
    Floor(location, SHARD).raise_to(5)
    assert Floor(table.location, SHARD).position() == 7
    assert Records(table.location.store, FLOOR).numbers() == [1, 2]
