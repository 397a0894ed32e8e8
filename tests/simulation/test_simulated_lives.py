"""Some lives of each kind in every run, many in `make prove`; and that a life can be lived again, and finds what is wrong."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import ShardWriter
from lance_memwal.errors import CorruptDataError, FencedError, WriterPoisonedError
from lance_memwal.feed.consumers import Consumer
from lance_memwal.log.manifest import ShardManifestStore, with_generation
from lance_memwal.log.transactions import TransactionMap
from lance_memwal.log.wal import ShardLog
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.store.port import ObjectStore
from lance_memwal.testing import StoreSuite
from lance_memwal.types import ShardManifest, SsTable
from lance_memwal.write import flush
from tests.harness.profile import scaled
from tests.kit.lance_suite import SCHEMA, LanceSuite
from tests.simulation.kinds import KINDS, LANCE_KINDS, command, kind_of, life_of
from tests.simulation.lance import MemoryLance
from tests.simulation.log_lives import LogLife
from tests.simulation.schedule import StandstillError
from tests.simulation.world import MemoryObjects, empty_table

_LANCE_NAME = re.compile(r"[0-9a-f]{50}")  # of a data file: drawn by Lance


def lived(kind: str, seed: int, *, lance: bool = False) -> list[str]:
    """What a life broke, each with the command that lives it again."""
    again = command(kind, seed, lance=lance)
    with life_of(kind, seed, lance=lance) as life:
        try:
            return [f"{what}\n  {again}" for what in life.run()]
        except StandstillError as error:
            error.add_note(again)
            raise


@pytest.mark.scaled
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_life_breaks_a_promise(kind: str) -> None:
    ci, prove = {"log": (40, 20_000), "once": (15, 10_000), "writer": (10, 5_000)}[kind]
    broken = [what for seed in range(scaled(ci=ci, prove=prove)) for what in lived(kind, seed)]
    assert not broken, "\n".join(broken[:5])


@pytest.mark.scaled
@pytest.mark.parametrize("kind", LANCE_KINDS)
def test_no_life_with_lance_breaks_a_promise(kind: str) -> None:
    broken = [what for seed in range(scaled(ci=5, prove=1_000)) for what in lived(kind, seed, lance=True)]
    assert not broken, "\n".join(broken[:5])


def test_every_number_has_a_kind() -> None:
    assert {kind_of(seed) for seed in range(12)} == set(KINDS)
    assert {kind_of(seed, lance=True) for seed in range(12)} == set(LANCE_KINDS)


@pytest.mark.parametrize("lance", [False, True], ids=["alone", "with Lance"])
def test_what_lived_here_is_lived_again_by_its_command(lance: bool) -> None:
    """In another process, which is young, and hashes names otherwise."""
    first, lives = 6, 3 if lance else 6
    here = [line for seed in range(first, first + lives) for line in _trace(seed, lance=lance)]
    asked = [f"--seed={first}", f"--lives={lives}", "--trace", *(["--lance"] if lance else [])]
    told = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *asked],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    there = [line for line in told.stdout.splitlines() if " life " not in line]
    assert len(here) > 20 * lives
    assert [_LANCE_NAME.sub("name", line) for line in there] == [_LANCE_NAME.sub("name", line) for line in here]


def _trace(seed: int, *, lance: bool) -> Iterator[str]:
    with life_of(kind_of(seed, lance=lance), seed, lance=lance, keep_trace=True) as life:
        assert not life.run()
        yield from life.world.schedule.trace


def test_a_life_does_not_depend_on_the_lives_before() -> None:
    (first, *_, second) = ("\n".join(_trace(seed, lance=False)) for seed in (5, 3, 0, 5))
    assert first == second


def test_lives_reach_the_interesting_places() -> None:
    lives = [KINDS[kind](seed) for kind in sorted(KINDS) for seed in range(100, 108)]
    assert not [what for life in lives for what in life.run()]
    assert sum(life.world.crashes for life in lives) > 4
    assert sum(len(life.acknowledged) for life in lives) > 60


# ------------------------------------------------------------------------------------------------------- bugs, put in


def _no_sentinel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardLog, "place_sentinel", lambda self, transactions, **_: self.next_position)


def _no_second_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardManifestStore, "check_fenced", lambda self, epoch: self.read_latest())


def _claims_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardManifestStore, "is_newest", lambda self, version: True)


def _sentinel_of_a_sleeper(patch: pytest.MonkeyPatch) -> None:
    """The map of a claimer that slept leaves out what its successor published."""
    take = TransactionMap.take

    def forgetful(self: TransactionMap, *given: Any, **named: Any) -> None:
        take(self, *given, **named)
        self.leaves_out = False

    patch.setattr(TransactionMap, "take", forgetful)


def _cursor_goes_too_far(patch: pytest.MonkeyPatch) -> None:
    """A flush calls the first entry of the next generation flushed, too."""

    def too_far(latest: ShardManifest, sstable: SsTable, covered: int) -> ShardManifest:
        return with_generation(latest, sstable, covered + 1)

    patch.setattr(flush, "with_generation", too_far)


def _repeats_are_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionMap, "is_repeat", lambda self, txn: False)


def _splits_puts(patch: pytest.MonkeyPatch) -> None:
    """A put of several rows becomes two."""
    put = ShardWriter.put

    def split(self: ShardWriter, rows: pa.Table, **options: Any) -> Any:
        half = rows.num_rows // 2
        if half and "txn" not in options:
            put(self, rows.slice(0, half), **options)
            rows = rows.slice(half)
        return put(self, rows, **options)

    patch.setattr(ShardWriter, "put", split)


def _poisons_for_nothing(patch: pytest.MonkeyPatch) -> None:
    append = ShardLog.append

    def poisoned(self: ShardLog, data: Any) -> int:
        if self.next_position % 3 == 0:
            raise WriterPoisonedError("for nothing")
        return append(self, data)

    patch.setattr(ShardLog, "append", poisoned)


def _fences_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """A flush is told of a successor that was never there."""

    def fenced(latest: ShardManifest, sstable: SsTable, covered: int) -> ShardManifest:
        del sstable, covered
        raise FencedError(latest.writer_epoch, latest.writer_epoch + 1)

    patch.setattr(flush, "with_generation", fenced)


def _calls_it_damage(patch: pytest.MonkeyPatch) -> None:
    """Whoever finds that a successor has the shard calls that damage."""
    check_fenced = ShardManifestStore.check_fenced

    def damaged(self: ShardManifestStore, epoch: int) -> ShardManifest:
        try:
            return check_fenced(self, epoch)
        except FencedError as error:
            raise CorruptDataError("the epochs are in disorder") from error

    patch.setattr(ShardManifestStore, "check_fenced", damaged)


def _poisons_by_damage(patch: pytest.MonkeyPatch) -> None:
    """Damage that was never there, as the cause of an error that faults would explain."""
    append = ShardLog.append

    def poisoned(self: ShardLog, data: Any) -> int:
        if self.next_position % 3 == 0:
            raise WriterPoisonedError("by damage") from CorruptDataError("never there")
        return append(self, data)

    patch.setattr(ShardLog, "append", poisoned)


def _reads_ahead(patch: pytest.MonkeyPatch) -> None:
    """A consumer holds one batch back, and a commit keeps the place after it."""
    read = Consumer.__iter__

    def hand_out(self: Consumer) -> Iterator[pa.RecordBatch]:
        batches = read(self)
        following = next(batches, None)
        while (batch := following) is not None:
            following = next(batches, None)
            yield batch

    patch.setattr(Consumer, "__iter__", hand_out)


def _forgets_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Consumer, "commit", lambda self: None)


@dataclass(frozen=True, slots=True)
class Bug:
    """What is put in, and which line (an expression) of a life must tell of it: another one may be the bug's own mistake.

    Lives from `first` on are tried, with `with_faults` only those whose network fails.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    kind: str
    breach: str
    first: int = 0
    with_faults: bool = False


BUGS = {
    "no sentinel": Bug(_no_sentinel, "log", "^I9: epoch .* acknowledged after epochs"),
    "no second look at the manifest": Bug(_no_second_look, "log", "^I9: epoch .* acknowledged after epochs"),
    "a claim without a look at what is newer": Bug(
        _claims_without_a_look, "large log", "^I9: an epoch was given twice", 715
    ),
    "a late sentinel forgets": Bug(_sentinel_of_a_sleeper, "once", "^rows are there twice", 440),
    "repeats are new": Bug(_repeats_are_new, "once", "^rows are there twice"),
    "the cursor goes too far": Bug(_cursor_goes_too_far, "writer", "^I1, I2: the table shows"),
    "a put is split in two": Bug(_splits_puts, "writer", "^I4: the table shows"),
    "a scan meets half a put": Bug(_splits_puts, "writer", "^I4: a scan shows"),
    "an appender is poisoned for nothing": Bug(
        _poisons_for_nothing, "log", r"^appender.* failed: WriterPoisonedError\("
    ),
    "a writer is poisoned for nothing": Bug(_poisons_for_nothing, "writer", r"^writer.* failed: WriterPoisonedError\("),
    "a fault brings damage": Bug(
        _poisons_by_damage, "writer", r"^writer.* failed: WriterPoisonedError\('by damage", with_faults=True
    ),
    "a writer is fenced by nobody": Bug(_fences_for_nothing, "writer", r"^writer.* failed: FencedError\("),
    "a successor is called damage": Bug(_calls_it_damage, "log", r"^appender.* failed: CorruptDataError\("),
    "a consumer of rows reads ahead": Bug(_reads_ahead, "once", "^a consumer missed", 1_940),
    "a consumer of changes reads ahead": Bug(_reads_ahead, "writer", "^a consumer missed|^the mirror", 170),
    "a commit of a consumer is forgotten": Bug(_forgets_commits, "once", "^a consumer .* what it has committed"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_lives_find_a_bug_that_was_put_in(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = BUGS[bug]
    planted.plant(monkeypatch)
    live = partial(LogLife, size=3) if planted.kind == "large log" else KINDS[planted.kind]
    lives = (live(seed) for seed in range(planted.first, planted.first + 300))
    tried = (life for life in lives if life.world.has_faults or not planted.with_faults)
    assert any(re.search(planted.breach, what) for life in tried for what in life.run())


# The store and the Lance of simulated lives do what the real ones do: the same suites, over both.


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class TestMemoryObjects(StoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjects(_now_ms)


class TestLance(LanceSuite):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        uri = str(tmp_path / "t")
        mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False})
        return resolve(uri)


class TestMemoryLance(LanceSuite):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        store = empty_table(keyed=True).copy(_now_ms)
        key = f"stands-in-{tmp_path.name}"
        names = iter(f"file-{number}" for number in range(1_000))
        return Location(
            uri=f"/{key}",
            store=store,
            store_once=store,
            storage_options=None,
            metrics=Recorder(""),
            is_local=True,
            root_path=f"/{key}",
            key=key,
            lance=MemoryLance(store, lambda: next(names)),
        )
