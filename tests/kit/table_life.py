"""The canonical life of a table under faults, and the oracle outside that judges it.

Owns `CanonicalLife`: made, written, updated, deleted from, flushed, kept as of then, consumed, loaded in bulk, compacted, given
a column, collected, taken over, appended to exactly once, maintained. Clients behave as users do: what failed is noted as
*maybe*, a writer that failed is opened again, and a look at the row decides what to do next. After a crash another process
goes on where the first one stopped. Invariants of the oracle:

1. It knows the possible rows of every key: one after an acknowledgement, more while an answer is out.
2. Of a write without an answer a shard shows all rows or none, as far as nobody wrote them since.
3. It judges through a store without faults, after every effect that was late has come.
4. An error that leaves the library must be one of its own, and must have a reason: a fault that its process met, or an object
   that was torn. What is told to be damaged must be what the damage was done to. No consumer is ever passed by collection.
5. Where a torn object ends a part of the verdict, the other parts are judged all the same.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import lance
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.errors import (
    CollectedError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    MemWalError,
    TableReplacedError,
    UnsupportedFormatError,
)
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.sharding import Sharding
from lance_memwal.store.location import Location, resolve
from lance_memwal.testing import FaultKind, FaultScript, SimulatedCrash
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import Transaction
from lance_memwal.write.once import OnceAppender
from tests.kit.feeds import apply

_T = TypeVar("_T")
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64()), ("note", pa.string())])
_SETTINGS: dict[str, Any] = {"max_entry_bytes": 3_000, "wal_persist_retry_base_delay_ms": 1}
_BULK = range(1_000, 1_200)
_TRIES = 4
_SHARD = mw.shard_id_for(mw.Unsharded())
_NOW = timedelta(0)
_STALE = 100
_ZERO = [{"id": _STALE, "value": 0, "note": None}]

# Whatever goes wrong with a store, these say something that is not so.
_NEVER = (InvalidInputError, CollectedError, TableReplacedError)

Row = tuple[int, str | None]
Rows = dict[int, set[Row | None]]
Change = Callable[[Row | None], Row | None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where lives happen: one table each."""

    prefix: str
    options: Mapping[str, str] | None = None

    def location(self, name: str, script: FaultScript | None = None) -> Location:
        wrap = None if script is None else script.wrap
        return resolve(f"{self.prefix}/{name}", self.options, clock=SkippingClock(), wrap=wrap)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """One write to one shard: the rows that are possible without it, and with it, of the keys that nobody wrote since."""

    before: Rows
    after: Rows

    def forget(self, keys: Iterable[int]) -> None:
        """Others write these keys now: what they show says nothing about this write any more."""
        for key in keys:
            self.before.pop(key, None)
            self.after.pop(key, None)

    def settle(self, key: int, row: Row | None) -> None:
        """From now on `key` shows `row`."""
        if key in self.before:
            self.before[key] &= {row}
            self.after[key] &= {row}

    def is_halved(self, rows: Mapping[int, Row]) -> bool:
        """Whether `rows` have some of this write, and not all."""
        return not any(all(rows.get(key) in side[key] for key in side) for side in (self.before, self.after))


@dataclass
class TableOracle:
    """What clients did and what they were told."""

    possible: Rows = field(default_factory=dict)
    unanswered: list[Unanswered] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    mirror: dict[int, dict[str, Any]] = field(default_factory=dict)
    then: dict[int, Row] | None = None
    crashed_at: str = ""


class CanonicalLife:
    """One life at `place`; `scripts` have the faults of its processes, one after another.

    Another life has other `steps`, another table (`_create`), rows with more columns (`_row`), and more to compare
    (`_look_closer`, `_judge_more`).
    """

    _sharding: ClassVar[Sharding] = mw.Unsharded()

    def __init__(self, place: Place, name: str, scripts: Sequence[FaultScript]) -> None:
        self.oracle = TableOracle()
        self._place, self._name = place, name
        self._scripts = list(scripts)
        self._ended = list[FaultScript]()
        self._values = itertools.count(1)
        self._begin_process()

    def _begin_process(self) -> None:
        """A process starts, with nothing but what is on storage."""
        CACHE.clear()
        self.script = self._scripts.pop(0) if self._scripts else FaultScript()
        self._location = self._place.location(self._name, self.script)
        self._table: mw.Table | None = None
        self._writer: mw.TableWriter | None = None
        self._writers: list[mw.TableWriter] = []

    # ------------------------------------------------------------------------------------------------------------- life

    def run(self) -> list[str]:
        """Live it to the end, over crashes; what is wrong after it."""
        for step in self.steps:
            try:
                step(self)
            except SimulatedCrash:
                self.oracle.crashed_at += f" {step.__name__}"
                self._end_process()
                if step is not self.steps[0]:
                    self.oracle.broken += self._judged(self._judge_crashed)
                self._begin_process()
                if step is self.steps[0]:
                    step(self)  # nothing else can be done without a table
            except MemWalError as error:
                self._refuse(step.__name__, error)
            except Exception as error:
                self.oracle.broken.append(f"{step.__name__} raised {error!r}, which is none of our errors")
        self._end_process()
        self._scripts.clear()
        self._begin_process()
        found = list(self._verdict())
        return [*self.oracle.broken, *found]  # the verdict, too, notes what is broken

    def _end_process(self) -> None:
        """The process is no more, and what it sent arrives."""
        self._abandon()
        self.script.settle()
        self._ended.append(self.script)

    def _abandon(self) -> None:
        """The process, or its writer, ends here, without a farewell."""
        while self._writers:
            writer = self._writers.pop()
            with suppress(MemWalError, SimulatedCrash):
                writer.abort()
            writer._orphan()  # whatever the abort could not do: nobody of this process finds it any more
        self._writer = None

    def _refuse(self, what: str, error: MemWalError) -> None:
        told = f"{what}: {type(error).__name__}: {error}"
        if isinstance(error, _NEVER):
            self.oracle.broken.append(f"no fault explains {told}")
        elif (damage := _damage(error)) is not None:
            if not self._is_damaged(damage.path):
                self.oracle.broken.append(f"nothing damaged {damage.path}, but {told}")
        elif not self.script.injected and not self._torn():
            self.oracle.broken.append(f"this process met no fault, but {told}")
        self.oracle.refused.append(told)

    def _is_damaged(self, path: str | None) -> bool:
        """Whether this is what was torn, or what this process was given damaged bytes of."""
        damaged = [call.path for call in self.script.injected if call.fault and not call.fault.keeps_contract]
        return any(_is_same(path, other) for other in (*self._torn(), *damaged))

    def _torn(self) -> list[str]:
        """The objects of which half is on storage."""
        met = [call for script in (*self._ended, self.script) for call in script.injected]
        return [call.path for call in met if call.fault is FaultKind.TORN_OBJECT]

    @property
    def table(self) -> mw.Table:
        if self._table is None:
            self._table = self._again("open", lambda: mw.open_table(self._location))
        return self._table

    @property
    def writer(self) -> mw.TableWriter:
        if self._writer is None:
            self._writer = self._again("writer", lambda: self.table.writer(compaction=None, **_SETTINGS))
            self._writers.append(self._writer)
        return self._writer

    def _again(self, what: str, call: Callable[[], _T]) -> _T:
        for _ in range(_TRIES - 1):
            try:
                return call()
            except MemWalError as error:
                self._refuse(what, error)
        return call()

    def _write(self, keys: Iterable[int], change: Change, call: Callable[[], object]) -> bool:
        """Write what turns the rows of `keys` into others; whether it was acknowledged."""
        possible, unanswered = self.oracle.possible, self.oracle.unanswered
        before = {key: possible.get(key, {None}) for key in keys}
        after = {key: {change(row) for row in rows} for key, rows in before.items()}
        for other in unanswered:
            other.forget(before)
        unanswered += (parts := self._by_shard(before, after))
        possible.update({key: rows | after[key] for key, rows in before.items()})
        try:
            call()
        except MemWalError as error:
            self._refuse("write", error)
            self._abandon()
            return False
        possible.update(after)
        del unanswered[-len(parts) :]
        return True

    def _by_shard(self, before: Rows, after: Rows) -> list[Unanswered]:
        parts = dict[str, Unanswered]()
        for key, rows in before.items():
            part = parts.setdefault(mw.shard_id_for(self._sharding, key), Unanswered({}, {}))
            part.before[key], part.after[key] = set(rows), set(after[key])
        return list(parts.values())

    def _put(self, *keys: int, note: str | None = None, txn: tuple[str, int] | None = None, **more: Any) -> bool:
        value = next(self._values)
        rows = [self._row(key, value, note) | more for key in keys]
        return self._write(keys, lambda _: (value, note), lambda: self.writer.put(rows, txn=txn, missing="null"))

    def _row(self, key: int, value: int, note: str | None) -> dict[str, Any]:
        return {"id": key, "value": value, "note": note}

    def _look(self, key: int) -> Row | None:
        """The row of a key, as a client sees it; from now on no other is possible."""
        found = self._again("get", lambda: self.writer.get(key))
        row = None if found is None else (found["value"], found["note"])
        if row not in self.oracle.possible.get(key, {None}):
            self.oracle.broken.append(f"I7: get({key}) gives {row}, possible is {self.oracle.possible.get(key)}")
        self.oracle.possible[key] = {row}
        for write in self.oracle.unanswered:
            write.settle(key, row)
        return row

    # ------------------------------------------------------------------------------------------------------------ steps

    def make(self) -> None:
        self._table = self._again("create", self._create)

    def _create(self) -> mw.Table:
        return mw.create_table(self._location, _SCHEMA, primary_key="id", exist_ok=True)

    def write(self) -> None:
        self._put(1, 2, 3, 4, note="first")
        self._put(5)

    def change(self) -> None:
        if (row := self._look(1)) is not None:
            changed = (row[0], "changed")
            rows = [{"id": 1, "note": "changed"}]
            self._write([1], lambda _: changed, lambda: self.writer.update(rows))
        self._write([2], lambda _: None, lambda: self.writer.delete([2]))
        if self._put(6, txn=("app", 1)) and not self.writer.put(_ZERO, txn=("app", 1)).skipped:
            self.oracle.broken.append("a transaction that was acknowledged was written again")

    def flush(self) -> None:
        self._upkeep(lambda: self.writer.flush())

    def write_more(self) -> None:
        self._put(1, 7, note="second")
        value = next(self._values)
        rows = [{"id": 3, "value": value, "note": None}]
        self._write([3], lambda _: (value, None), lambda: self.writer.put_nowait(rows).wait())
        self._look(2)

    def keep(self) -> None:
        self._again("checkpoint", self._keep)

    def _keep(self) -> None:
        rows = self._scan()
        if self._is_kept():
            self.oracle.then = rows  # an answer that was lost: nothing was written since
            return
        self.table.checkpoints.create("then")
        self.oracle.then = rows

    def consume(self) -> None:
        self._again("consume", self._consume)

    def _consume(self) -> None:
        reader = self.table.consumers.open("mirror", start="snapshot", until="now")
        for batch in reader:
            apply(self.oracle.mirror, batch)
            reader.commit()

    def load(self) -> None:
        value = next(self._values)
        rows = pa.table({"id": list(_BULK), "value": [value] * len(_BULK), "note": ["bulk"] * len(_BULK)})
        self._write(_BULK, lambda _: (value, "bulk"), lambda: self.writer.put(rows))

    def compact(self) -> None:
        self._upkeep(lambda: self.table.compact())

    def add_column(self) -> None:
        if "extra" not in self.table.schema.names:
            clean = lance.dataset(self._location.dataset_uri, storage_options=self._location.storage_options)
            clean.add_columns(pa.schema([("extra", pa.string())]))
        self._upkeep(lambda: self.writer.evolve_schema())
        self._put(8, note="wide", extra="x")

    def collect(self) -> None:
        self._upkeep(lambda: self.table.gc(grace_seconds=0))

    def take_over(self) -> None:
        self._put(0, 9)  # wherever there are shards, 0, 10 and the row of the stale writer are in the same one
        stale, self._writer = self._writer, None
        is_taken = self._put(10, note="new owner")
        if stale is None:
            return
        try:
            stale.put(_ZERO, missing="null")
        except MemWalError as error:
            if is_taken and not isinstance(error, FencedError):
                self._refuse("stale", error)
        else:
            if is_taken:
                self.oracle.broken.append("I9: a writer acknowledged after a takeover")
            else:
                self.oracle.possible[_STALE] = {(0, None)}

    def close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            finally:
                self._abandon()

    def append_once(self) -> None:
        once = OnceAppender(self._location, max_entry_bytes=3_000)
        claim = self._again("claim", lambda: once.claim(_SHARD))
        value = next(self._values)
        rows = pa.RecordBatch.from_pylist(
            [{"id": key, "value": value, "note": "once"} for key in (11, 12)], self.table.schema
        )

        def append() -> bool:
            return self._again("append", lambda: once.append(claim, [rows], txn=Transaction("sink", 1))).skipped

        if self._write([11, 12], lambda _: (value, "once"), append) and not append():
            self.oracle.broken.append("an append that was acknowledged was written again")
        self._upkeep(lambda: once.flush_tail(claim))

    def look_back(self) -> None:
        def compare() -> None:
            if not self._is_kept():
                if self.oracle.then is not None:
                    self.oracle.broken.append("a checkpoint that was made is not there")
                return
            found = _by_key(self.table.at("then").scan().to_table(), self.oracle.broken, "then")
            if self.oracle.then is not None and found != self.oracle.then:
                self.oracle.broken.append(f"the table at a checkpoint shows {found}, not {self.oracle.then}")

        self._again("look back", compare)
        self.oracle.then = None
        self._upkeep(self._forget)

    def _forget(self) -> None:
        if self._is_kept():
            self.table.checkpoints.drop("then")

    def _is_kept(self) -> bool:
        return "then" in [checkpoint.name for checkpoint in self.table.checkpoints.list()]

    def maintain(self) -> None:
        self._upkeep(lambda: self.table.maintain(versions=_NOW, grace_seconds=0))

    def read(self) -> None:
        self._again("scan", self._scan)
        self.close()

    def _upkeep(self, call: Callable[[], object]) -> None:
        """What may be done again at any time."""
        try:
            self._again("upkeep", call)
        except (FencedError, mw.WriterPoisonedError) as error:
            self._refuse("upkeep", error)
            self._abandon()

    def _scan(self) -> dict[int, Row]:
        scanned = self.table.scan().to_table()
        rows = _by_key(scanned, self.oracle.broken, "a scan")
        self.oracle.broken += self._impossible("a scan", rows)
        self._look_closer(scanned, rows)
        return rows

    def _look_closer(self, scanned: pa.Table, rows: Mapping[int, Row]) -> None:
        """Compare what else a scan shows of its rows."""

    steps: ClassVar[tuple[Callable[[Any], None], ...]] = (
        make,
        write,
        change,
        flush,
        write_more,
        keep,
        consume,
        load,
        compact,
        add_column,
        collect,
        take_over,
        close,
        append_once,
        consume,
        look_back,
        maintain,
        read,
    )

    # ---------------------------------------------------------------------------------------------------------- verdict

    def _impossible(self, what: str, rows: Mapping[int, Row]) -> Iterator[str]:
        possible = self.oracle.possible
        for key in possible.keys() | rows.keys():
            if rows.get(key) not in possible.get(key, {None}):
                yield f"I1, I2: {what} shows {rows.get(key)} for key {key}, possible is {possible.get(key)}"
        for write in self.oracle.unanswered:
            if write.is_halved(rows):
                yield f"I4: {what} shows a part of a write: {write}, of which it has { ({k: rows.get(k) for k in write.before}) }"

    def _verdict(self) -> Iterator[str]:
        """What is wrong; a torn object may be told of instead, by the parts that need it."""
        for part in (self._judge_reads, self._judge_writer, self._judge_feed, self._judge_base, self._judge_verify):
            yield from self._judged(part)
            self._abandon()

    def _judged(self, part: Callable[[], Iterator[str]]) -> Iterator[str]:
        try:
            yield from part()
        except Exception as error:
            damage = _damage(error)
            if damage is None:
                yield f"{part.__name__} failed: {error!r}"
            elif not self._is_damaged(damage.path):
                yield f"damaged at {damage.path}: {error}"
            self.oracle.refused.append(f"verdict: {type(error).__name__}: {error}")

    def _judge_crashed(self) -> Iterator[str]:
        """What others see before anybody writes again."""
        CACHE.clear()
        table = mw.open_table(self._place.location(self._name))
        found = list[str]()
        rows = _by_key(table.scan().to_table(), found, "a scan after a crash")
        yield from (*found, *self._impossible("a scan after a crash", rows))

    def _judge_reads(self) -> Iterator[str]:
        found = list[str]()
        rows = self._scan()
        keys = [*range(13), _STALE, *_BULK[::40]]
        looked = _by_key(self.table.lookup(keys), found, "a lookup")
        if looked != {key: row for key, row in rows.items() if key in keys}:
            found.append(f"I7: a lookup gives {looked}, not {rows}")
        yield from found

    def _judge_writer(self) -> Iterator[str]:
        found = list[str]()
        rows = self._scan()
        for opens in (1, 2):
            again = _by_key(self.writer.scan().to_table(), found, "a writer")
            if again != rows:
                found.append(f"I6: open {opens} shows other rows: {_difference(again, rows)}")
            self._abandon()
        if not self._put(13, note="after all") and not self._torn():
            found.append("a table without faults takes no writes")
        self.close()
        yield from found

    def _judge_feed(self) -> Iterator[str]:
        rows = self._scan()
        self._consume()
        mirror = {key: (row["value"], row["note"]) for key, row in self.oracle.mirror.items()}
        if mirror != rows:
            yield f"the mirror of a consumer differs: {_difference(mirror, rows)}"

    def _judge_base(self) -> Iterator[str]:
        found = list[str]()
        rows = self._scan()
        self.table.flush(idle_seconds=0, force=True)
        self.table.compact()
        self.table.maintain(versions=_NOW, grace_seconds=0)
        base = lance.dataset(self._location.dataset_uri, storage_options=self._location.storage_options)
        for what, table in (("after maintenance", self.table.scan()), ("the base table", base)):
            later = _by_key(table.to_table(), found, what)
            if later != rows:
                found.append(f"I8: {what} shows other rows: {_difference(later, rows)}")
        self._judge_more(rows)
        yield from found

    def _judge_verify(self) -> Iterator[str]:
        torn = self._torn()
        for problem in self.table.verify().problems:
            if not any(path in f"{problem.where} {problem.what}" for path in torn):
                yield f"verify finds a fault: {problem}"

    def _judge_more(self, rows: Mapping[int, Row]) -> None:
        """Compare in the end what else a life can see of its rows; what is wrong is noted as broken."""


def _damage(error: BaseException | None) -> CorruptDataError | UnsupportedFormatError | None:
    """The damage that an error tells of, or that it comes from."""
    while error is not None and not isinstance(error, CorruptDataError | UnsupportedFormatError):
        error = error.__cause__
    return error


def _is_same(told: str | None, path: str) -> bool:
    """Whether an error that names `told` means the object at `path`, or the SSTable that it is a file of."""
    return told is not None and (told == path or path.startswith(f"{told}/"))


def _by_key(rows: pa.Table, broken: list[str], what: str) -> dict[int, Row]:
    columns = [rows.column(name).to_pylist() for name in ("id", "value", "note")]
    twice = [key for key, count in Counter(columns[0]).items() if count > 1]
    if twice:
        broken.append(f"I5: {what} shows keys twice: {twice[:3]}")
    return {key: (value, note) for key, value, note in zip(*columns, strict=True)}


def _difference(one: Mapping[int, Any], other: Mapping[int, Any]) -> dict[int, Any]:
    keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    return {key: (one.get(key), other.get(key)) for key in sorted(keys)[:4]}
