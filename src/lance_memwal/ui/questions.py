"""Queries of the page: what may be asked, what it may cost, and their plan as the page draws it.

Owns `Desk`, the kinds of query, and `drawn`. Invariants:

1. A query only reads. SQL runs as `table.sql` does: DDL, DML and statements are refused before anything runs.
2. At most `MAX_ROWS` rows come back, and at most so many bytes (`ui.answers`).
3. A client has one query at a time, all clients together `AT_ONCE`. One more is refused; no query waits.
4. A query is answered or refused within `MAX_SECONDS`. What cannot be stopped in between keeps its place until it ends.
5. Numbers of a plan that were not counted, or cannot be told apart, are None, never 0.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.clock import SYSTEM_CLOCK, Clock, thread_pool
from lance_memwal.engines.dataset import Rows, dataset_at
from lance_memwal.engines.sql import query as sql_query
from lance_memwal.errors import InvalidInputError
from lance_memwal.process.deadline import Deadline
from lance_memwal.read.merge import GENERATION
from lance_memwal.read.plan import ScanPlan, ShardPlan, Superseded, TierPlan, count_superseded
from lance_memwal.read.scan import Read, Scan
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.projection import root_of
from lance_memwal.rows.sharding import Bucket, Identity, Sharding
from lance_memwal.rows.text_values import typed_key, typed_vector
from lance_memwal.table import Table, newest_base
from lance_memwal.types import ROW_ADDRESS
from lance_memwal.ui.answers import Cells, Refusal, columns_told

MAX_COUNTED_ROWS: Final = 2_000_000
MAX_DRAWN: Final = 200


@dataclass(frozen=True, slots=True)
class Answered:
    """Where the rows of an answer came from: by shard and generation, and those of the base table by fragment.

    The shard is None where rows do not say in which one they are (manual shards).
    """

    generations: Counter[tuple[str | None, int]]
    fragments: Counter[int]

    def of(self, shard_id: str, generation: int, *, alone: bool) -> int | None:
        """Rows of a generation of a shard; `alone`: no other shard that was read has one of that number."""
        if None in {shard for shard, _ in self.generations}:
            return self.generations[None, generation] if alone else None
        return self.generations[shard_id, generation]


@dataclass(frozen=True, slots=True)
class FragmentsRead:
    """What Lance read of the base table."""

    fragments: int
    size_bytes: int

    @classmethod
    def of(cls, told: Any) -> FragmentsRead:
        """From the statistics of a scan."""
        return cls(int(told.all_counts.get("fragments_scanned", 0)), int(told.bytes_read))


def answered_by(rows: pa.Table, sharding: Sharding) -> Answered:
    """Where the rows of an answer came from; it has generations, row addresses, and what the sharding looks at."""
    addresses = np.asarray(rows[ROW_ADDRESS].drop_null().to_numpy()).astype(np.uint64)
    found: Counter[tuple[str | None, int]] = Counter()
    for batch in rows.filter(pc.greater(rows[GENERATION], 0)).to_batches():
        for shard_id, part in sharding.route(batch, None) if sharding.is_routed else [(None, batch)]:
            for generation, count in Counter(part.column(GENERATION).to_pylist()).items():
                found[shard_id, generation] += count
    return Answered(found, Counter((addresses >> np.uint64(32)).tolist()))


def drawn(
    scan: Scan, answered: Answered | None = None, limit: int | None = None, read: FragmentsRead | None = None
) -> dict[str, Any]:
    """The plan of a scan; `answered` says where the rows that are shown came from, and `read` what was read, if known."""
    plan, counted = scan.plan(), _counted(scan.snapshot)
    numbers = Counter(tier.generation for shard in plan.shards for tier in shard.tiers)
    return {
        "columns": plan.columns,
        "filter": plan.filter,
        "order": plan.order,
        "limit": limit,
        "key": plan.primary_key,
        "shards": [_shard(shard, counted, answered, numbers) for shard in plan.shards[:MAX_DRAWN]],
        "shards_in_all": len(plan.shards),
        "pruned": plan.pruned_shards[:MAX_DRAWN],
        "pruned_in_all": len(plan.pruned_shards),
        "base": None if plan.base_version is None else _base(plan, counted, answered, read),
        "text": str(plan) if len(plan.shards) <= MAX_DRAWN else None,
    }


def _counted(snapshot: Tiers) -> Superseded | None:
    memory = sum(ref.num_rows for view in snapshot.shards for ref in view.memory)
    flushed = sum(sstable.physical_rows or 0 for view in snapshot.shards for sstable in view.sstables)
    return count_superseded(snapshot) if memory + flushed <= MAX_COUNTED_ROWS else None


def _shard(
    shard: ShardPlan, counted: Superseded | None, answered: Answered | None, numbers: Counter[int]
) -> dict[str, Any]:
    def told(tier: TierPlan) -> dict[str, Any]:
        source, alone = (shard.shard_id, tier.generation), numbers[tier.generation] == 1
        return {
            "tier": tier.tier,
            "generation": tier.generation,
            "rows": tier.rows,
            "path": tier.path,
            "indexes": tier.indexes,
            "superseded": None if counted is None else counted.generations.get(source),
            "tombstones": None if counted is None else counted.tombstones.get(source),
            "answered": None if answered is None else answered.of(*source, alone=alone),
        }

    return {
        "shard": shard.shard_id,
        "epoch": shard.epoch,
        "manifest": shard.manifest_version,
        "skipped": shard.skipped,
        "kept_for": dict(shard.kept_for),
        "tiers": [told(tier) for tier in shard.tiers],
    }


def _base(
    plan: ScanPlan, counted: Superseded | None, answered: Answered | None, read: FragmentsRead | None
) -> dict[str, Any]:
    hidden = None if counted is None else counted.fragments
    giving = set() if answered is None else set(answered.fragments)

    def was_read(fragment: int) -> bool | None:
        """Lance tells how many fragments it read, not which: those that gave rows, and all or no others, are known."""
        if fragment in giving or (read is not None and read.fragments >= len(plan.fragments)):
            return True
        return False if read is not None and read.fragments == len(giving) else None

    return {
        "version": plan.base_version,
        "rows": plan.base_rows,
        "superseded": None if counted is None else counted.base,
        "answered": None if answered is None else answered.fragments.total(),
        "fragments_in_all": len(plan.fragments),
        "fragments_read": None if read is None else read.fragments,
        "bytes_read": None if read is None else read.size_bytes,
        "fragments": [
            {
                "fragment": fragment.fragment,
                "rows": fragment.rows,
                "deleted": fragment.deleted,
                "superseded": None if hidden is None else hidden.get(fragment.fragment, 0),
                "answered": None if answered is None else answered.fragments[fragment.fragment],
                "read": was_read(fragment.fragment),
            }
            for fragment in plan.fragments[:MAX_DRAWN]
        ],
    }


# ---------------------------------------------------------------------------------------------------------- questions


MAX_ROWS: Final = 1_000
DEFAULT_ROWS: Final = 100
MAX_SECONDS: Final = 30.0
AT_ONCE: Final = 4
_SQL_MEMORY_BYTES: Final = 256 << 20
_DRAWN_SCANS: Final = 4

Question = Mapping[str, Any]


class Limits:
    """How long one query may take, and whether anybody still wants its answer."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._deadline = Deadline(clock, seconds)
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._given_up.set()

    def check(self) -> None:
        """Raise if the query is to end here."""
        if self._given_up.is_set():
            raise Refusal(499, "the query was cancelled")
        self._deadline.refuse_passed("the query was not answered: ask for less, or add a filter")

    @property
    def left_seconds(self) -> float:
        """The time that is left."""
        return self._deadline.left_seconds


@dataclass(frozen=True, slots=True)
class Running:
    """A query that was begun."""

    answer: Future[dict[str, Any]]
    limits: Limits


class Desk:
    """Answers queries about one table."""

    def __init__(self, table: Table, *, clock: Clock = SYSTEM_CLOCK, max_seconds: float = MAX_SECONDS) -> None:
        self._table = table
        self._clock = clock
        self._max_seconds = max_seconds
        self._pool = thread_pool(AT_ONCE, "memwal-ui")
        self._lock = threading.Lock()
        self._clients: dict[str, Limits] = {}

    def begin(self, client: str, question: Question) -> Running:
        """Begin a query of a client; `Refusal` if it has one, or all places are taken."""
        kind = question.get("kind")
        answer = _KINDS.get(kind) if isinstance(kind, str) else None
        if answer is None:
            raise InvalidInputError(f"kind is one of {', '.join(_KINDS)}")
        limits = Limits(self._clock, self._max_seconds)
        with self._lock:
            if client in self._clients:
                raise Refusal(429, "your last query is still running: wait for it, or cancel it")
            if len(self._clients) >= AT_ONCE:
                raise Refusal(503, f"{AT_ONCE} queries are running already: try again when one of them is done")
            self._clients[client] = limits
        return Running(self._pool.submit(self._run, client, answer, question, limits), limits)

    def _run(self, client: str, answer: _Answer, question: Question, limits: Limits) -> dict[str, Any]:
        started = self._clock.monotonic()
        try:
            found = answer(self._table, question, limits)
            return {**found, "kind": question["kind"], "seconds": self._clock.monotonic() - started}
        finally:
            with self._lock:
                del self._clients[client]

    def close(self) -> None:
        """Begin nothing more, and end what runs, where it can be."""
        with self._lock:
            for limits in self._clients.values():
                limits.give_up()
        self._pool.shutdown(wait=False, cancel_futures=True)


_Answer = Callable[[Table, Question, Limits], dict[str, Any]]


# ------------------------------------------------------------------------------------------------------ what is asked


def _text(question: Question, name: str) -> str | None:
    value = question.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} is a text")
    return value.strip()


def _needed(question: Question, name: str, what: str) -> str:
    value = _text(question, name)
    if value is None:
        raise InvalidInputError(f"give {what}")
    return value


def _names(question: Question, name: str) -> list[str] | None:
    text = _text(question, name)
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _rows(question: Question, name: str = "limit") -> int:
    value = question.get(name, DEFAULT_ROWS)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ROWS:
        raise InvalidInputError(f"{name} is a number from 1 to {MAX_ROWS:,}")
    return value


def _vector(question: Question) -> list[float] | None:
    text = _text(question, "vector")
    return None if text is None else typed_vector(text)


# ------------------------------------------------------------------------------------------------------ answers


def _shown(schema: pa.Schema, cells: Cells, plans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "columns": columns_told(schema),
        "rows": cells.rows,
        "more": cells.more,
        "cut": cells.cut,
        "plans": list(plans),
    }


def _checked(batches: Iterator[pa.RecordBatch], limits: Limits) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        limits.check()
        yield batch


def _scan(table: Table, question: Question, limits: Limits) -> dict[str, Any]:
    most, columns, sharding = _rows(question), _names(question, "columns"), table.sharding
    traced = GENERATION not in table.schema.names
    named = [root_of(sharding.column)] if traced and isinstance(sharding, Bucket | Identity) else []
    more = [name for name in named if columns is not None and name not in columns]
    condition, reads = _text(question, "filter"), list[FragmentsRead]()
    scan = Scan(
        lambda: table.scan(filter=condition).snapshot,
        Read(
            columns=None if columns is None else [*columns, *more],
            filter=condition,
            limit=most + 1,  # one more than is shown tells whether there are more
            order_by=_names(question, "order_by"),
            with_row_address=traced,
            with_generation=traced,
        ),
        on_base_read=lambda told: reads.append(FragmentsRead.of(told)),
    )
    hidden = {*more, *((GENERATION, ROW_ADDRESS) if traced else ())}
    schema = pa.schema([field for field in scan.schema if field.name not in hidden])
    read = list(_checked(scan.to_batches(), limits))
    cells = Cells(most).add(_checked(iter(read), limits), len(schema))
    shown = pa.Table.from_batches(read, scan.schema).slice(0, len(cells.rows))
    return _shown(
        schema, cells, [drawn(scan, answered_by(shown, sharding) if traced else None, most, next(iter(reads), None))]
    )


def _get(table: Table, question: Question, limits: Limits) -> dict[str, Any]:
    schema = newest_base(table).columns
    key = typed_key(schema, _needed(question, "key", "the key of a row"))
    columns = _names(question, "columns")
    found = table.lookup([key], columns)
    limits.check()
    values = key if isinstance(key, tuple) else (key,)
    named = [
        pc.field(name) == pa.scalar(value, schema.columns.field(name).type)
        for name, value in zip(schema.need_key(), values, strict=True)
    ]
    condition = named[0]
    for other in named[1:]:
        condition &= other
    return _shown(found.schema, Cells(1).add([found], len(found.schema)), [drawn(table.scan(columns, condition))])


def _search(table: Table, question: Question, limits: Limits) -> dict[str, Any]:
    text, vector, most = _text(question, "text"), _vector(question), _rows(question, "k")
    if text is None and vector is None:
        raise InvalidInputError("give a text, a vector, or both")
    condition, columns = _text(question, "filter"), _names(question, "columns")
    found = table.search(
        vector, text=text, column=_names(question, "column"), k=most, filter=condition, columns=columns
    )
    limits.check()
    return _shown(found.schema, Cells(most).add([found], len(found.schema)), [drawn(table.scan(columns, condition))])


def _sql(table: Table, question: Question, limits: Limits) -> dict[str, Any]:
    text, most = _needed(question, "sql", "a query, as in select count(*) from t"), _rows(question)
    scans: list[Scan] = []

    def watch(rows: Rows) -> Rows:
        limits.check()
        if isinstance(rows, Scan) and len(scans) < _DRAWN_SCANS:
            scans.append(rows)
        return _Stoppable(rows, limits)

    tables = {"t": dataset_at(table.scan().snapshot)}
    found = sql_query(text, tables, memory_bytes=_SQL_MEMORY_BYTES, limit=most + 1, watch=watch, check=limits.check)
    return _shown(found.schema, Cells(most).add([found], len(found.schema)), [drawn(scan) for scan in scans])


@dataclass(frozen=True, slots=True)
class _Stoppable:
    """Rows that end where a query is to end."""

    rows: Rows
    limits: Limits

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a streaming reader."""
        reader = self.rows.to_reader()
        return pa.RecordBatchReader.from_batches(reader.schema, _checked(reader, self.limits))

    def to_table(self) -> pa.Table:
        """The rows as a table."""
        return self.to_reader().read_all()

    def count_rows(self) -> int:
        """How many they are."""
        self.limits.check()
        return self.rows.count_rows()


_KINDS: Final[dict[str, _Answer]] = {"scan": _scan, "get": _get, "search": _search, "sql": _sql}
