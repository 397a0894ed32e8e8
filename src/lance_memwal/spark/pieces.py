"""Rows of a task on their way to the commit: in its message, or staged below the table.

Owns `Piece`, `Pieces` and where their bytes are. Invariants:

1. A task writes nothing that a reader can see: staged objects are no part of the table, and collection removes those that
   nobody came for.
2. Messages are bounded per task (4 MiB) and in sum (128 MiB) for any number of tasks: the share of task
   number i is m * k / ((i + k) * (i + k + 1)), and these add up to m. What is more is staged.
3. A task keeps at most 64 MiB of rows before it stages them; all shards of one turn are one object.
4. Rows that came to the commit unsplit become the same pieces there, by the same plan: the tasks of the JVM face hand in those of
   small tasks as they are (`SmallTasks.java` bounds them).
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import MemWalError
from lance_memwal.rows.ipc_frames import read_stream, stream_of
from lance_memwal.rows.sharding import Sharding
from lance_memwal.spark.refusals import refusing
from lance_memwal.spark.rows import WritePlan
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve

_LOG = logging.getLogger(__name__)
TASK_MESSAGE_BYTES = 4 << 20
ALL_MESSAGE_BYTES = 128 << 20
_SPILL_BYTES = 64 << 20
_LARGE_SHARES = 32  # the k of invariant 2: about so many tasks may use most of the messages
_handed_in: dict[tuple[str, int], int] = {}
"""Bytes in messages, by job and attempt, of the last tasks of this process: a task may hand in several."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one shard from one task: inline, or `size_bytes` from `start` on of the staged object `path`.

    `batches` are the rows of a piece that the commit made itself.
    """

    shard_id: str
    rows: int
    size_bytes: int
    data: bytes | None = field(default=None, repr=False)
    path: str | None = None
    start: int = 0
    batches: tuple[pa.RecordBatch, ...] | None = field(default=None, repr=False)


@dataclass
class Pieces(WriterCommitMessage):
    """What one task hands to the commit: rows, or why it has refused them.

    `unsplit` are Arrow streams of rows as Spark has them. `routed_by` is the sharding that chose the shards of the pieces: the
    commit of a stream has a plan of its own, perhaps of a table that was made anew meanwhile.
    """

    pieces: tuple[Piece, ...] = ()
    query_id: str | None = None
    run_id: str | None = None
    refused: MemWalError | None = None
    unsplit: tuple[bytes, ...] = field(default=(), repr=False)
    routed_by: Sharding | None = None


def unsplit(query_id: str | None, run_id: str | None, *streams: bytes) -> Pieces:
    """The message of a small task of the JVM face, which calls this by its name."""
    return Pieces((), query_id, run_id, unsplit=streams)


def split_here(plan: WritePlan, message: Pieces) -> Pieces:
    """The message with all its rows in pieces; raises what a task would have refused."""
    if not message.unsplit:
        return message
    held: dict[str, list[pa.RecordBatch]] = {}
    for stream in message.unsplit:
        with pa.ipc.open_stream(stream) as reader:
            for shard_id, rows in plan.split(iter(reader)):
                held.setdefault(shard_id, []).append(rows)
    made = (replace(_piece(shard_id, rows, _size(rows)), batches=tuple(rows)) for shard_id, rows in held.items())
    return replace(message, pieces=tuple(made), unsplit=(), routed_by=plan.sharding)


def _size(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(int(pa.ipc.get_record_batch_size(batch)) for batch in batches)


def _piece(shard_id: str, batches: Sequence[pa.RecordBatch], size_bytes: int) -> Piece:
    return Piece(shard_id, sum(batch.num_rows for batch in batches), size_bytes)


def write_pieces(plan: WritePlan, job: str, batches: Iterator[pa.RecordBatch]) -> Pieces:
    """All rows of one task, split by shard; nothing becomes visible."""
    context = TaskContext.get()
    query = run = None
    number = attempt = 0
    if context is not None:
        query = context.getLocalProperty("sql.streaming.queryId")
        run = context.getLocalProperty("spark.jobGroup.id")
        number, attempt = context.partitionId(), context.taskAttemptId()
    share = max(0, inline_share(number) - _handed_in.get((job, attempt), 0))
    pieces = refusing(partial(_collected, plan, job, share), batches)
    if isinstance(pieces, MemWalError):
        return Pieces((), query, run, pieces)
    if context is not None:
        _count((job, attempt), sum(piece.size_bytes for piece in pieces if piece.data is not None))
    return Pieces(pieces, query, run, routed_by=plan.sharding)


def _collected(plan: WritePlan, job: str, share: int, batches: Iterator[pa.RecordBatch]) -> tuple[Piece, ...]:
    collector = _Collector(plan, job, share)
    for shard_id, rows in plan.split(batches):
        collector.add(shard_id, rows)
    return collector.finish()


def inline_share(number: int) -> int:
    """How many bytes task `number` may put into messages."""
    k = _LARGE_SHARES
    return min(TASK_MESSAGE_BYTES, ALL_MESSAGE_BYTES * k // ((number + k) * (number + k + 1)))


def _count(task: tuple[str, int], size_bytes: int) -> None:
    _handed_in[task] = _handed_in.pop(task, 0) + size_bytes
    while len(_handed_in) > _LARGE_SHARES:
        _handed_in.pop(next(iter(_handed_in)), None)


class _Collector:
    """Rows by shard until the task ends; what is too much for a message is staged."""

    def __init__(self, plan: WritePlan, job: str, inline_bytes: int) -> None:
        self._plan = plan
        self._job = job
        self._inline_bytes = inline_bytes
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._pieces: list[Piece] = []

    def add(self, shard_id: str, rows: pa.RecordBatch) -> None:
        self._held.setdefault(shard_id, []).append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= _SPILL_BYTES:
            self._stage()

    def finish(self) -> tuple[Piece, ...]:
        if self._held and (self._pieces or self._held_bytes > self._inline_bytes):
            self._stage()
        for shard_id, batches in self._held.items():
            data = _encode(batches)
            self._pieces.append(replace(_piece(shard_id, batches, len(data)), data=data))
        return tuple(self._pieces)

    def _stage(self) -> None:
        options = self._plan.options
        location = resolve(options.path, options.storage_options)
        path = paths.stage_path(self._job, SYSTEM_CLOCK.token_hex(16))
        sink = io.BytesIO()
        for shard_id, batches in self._held.items():
            start = sink.tell()
            sink.write(_encode(batches))
            piece = _piece(shard_id, batches, sink.tell() - start)
            self._pieces.append(replace(piece, path=path, start=start))
        location.store.put_new(path, sink.getvalue())
        self._held, self._held_bytes = {}, 0


def _encode(batches: Sequence[pa.RecordBatch]) -> bytes:
    return bytes(stream_of(batches[0].schema, batches))


# -------------------------------------------------------------------------------------------------------- at the commit


def by_shard(messages: Sequence[Pieces | None]) -> dict[str, list[Piece]]:
    """All pieces by shard, in the order of the tasks."""
    found: dict[str, list[Piece]] = {}
    for message in messages:
        for piece in message.pieces if message is not None else ():
            found.setdefault(piece.shard_id, []).append(piece)
    return found


def load_pieces(location: Location, pieces: Sequence[Piece]) -> list[pa.RecordBatch]:
    """The rows of these pieces."""
    batches: list[pa.RecordBatch] = []
    for piece in pieces:
        if piece.batches is not None:
            batches += piece.batches
            continue
        data = piece.data
        if data is None:
            data = location.store.get_range(str(piece.path), piece.start, piece.size_bytes)
        batches += read_stream(data, "a piece of staged rows", path=piece.path).to_batches()
    return batches


def all_staged(location: Location, job: str, pieces: Mapping[str, Sequence[Piece]]) -> dict[str, list[Piece]]:
    """The same pieces, with those that came in messages staged too, as one object: any process can load them then."""
    path, sink = paths.stage_path(job, SYSTEM_CLOCK.token_hex(16)), io.BytesIO()

    def staged(piece: Piece) -> Piece:
        if piece.data is None:
            return piece
        start = sink.tell()
        sink.write(piece.data)
        return replace(piece, data=None, path=path, start=start)

    found = {shard_id: [staged(piece) for piece in given] for shard_id, given in pieces.items()}
    if sink.tell():
        location.store.put_new(path, sink.getvalue())
    return found


def unstage(location: Location, pieces: Sequence[Piece]) -> None:
    """Remove staged objects whose rows are all in the table; what is left is collected later."""
    for path in {piece.path for piece in pieces if piece.path is not None}:
        try:
            location.store.delete(path)
        except MemWalError as error:
            _LOG.debug("staged rows were left [path=%s]: %s", path, error)
