"""What a table must hold after an outage: rows with their blobs, transactions, checkpoints, and the place of a consumer.

Owns `Promises`. A mark of the trace says what began, a second one that it returned. What returned is promised; what began
and did not may have happened, or not. The life is one thread, so that at most one thing is undecided.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from lance.blob import blob_field

import lance_memwal as mw
from lance_memwal.lance import commit
from lance_memwal.lance.base import BaseTable
from tests.harness.oracle import Oracle, Row, Write
from tests.harness.shard_audit import TableKind
from tests.kit.feeds import apply
from tests.power.disk import Kind, Record

_AFTER = 1_000_000  # the number of what is written after the outage
_REPEATED = 2_000_000  # ... and of a repeat, which must not be there
_BLOBS_READ = 6


class Promises:
    """What was promised up to an instant of a life."""

    def __init__(self, rows: PowerRows, records: Iterable[Record]) -> None:
        self._kind = rows
        self._oracle = Oracle()
        self._moments: dict[str, dict[int, int]] = {}
        self._indexes: set[str] = set()
        self._undecided: set[str] = set()  # checkpoints that may be there, or not
        self._dropped: set[str] = set()
        self._places: list[dict[int, int]] = []  # what the consumer had at its place; the newest may not count yet
        self._write: list[Any] | None = None  # the last write with a transaction
        self._is_acknowledged = False
        for record in records:
            if record.kind == Kind.MARK:
                self._take(record.said)

    def _take(self, said: list[Any]) -> None:
        match said:
            case ["begins", "write", number, groups, deletes, txn]:
                for shard_id, keys in groups.items():
                    self._oracle.issued((shard_id, 0), Write(number, tuple(keys), deletes))
                self._is_acknowledged = txn is None and self._is_acknowledged
                self._write = said[2:] if txn is not None else self._write
            case ["returned", "write", _, groups, _, txn]:
                for shard_id in groups:
                    self._oracle.returned((shard_id, 0), durable=True)
                self._is_acknowledged = self._is_acknowledged or txn is not None
            case ["begins", "keep" | "drop", name, *_]:
                self._undecided.add(name)
            case ["returned", "keep", name, rows]:
                self._moments[name] = _numbers(rows)
                self._undecided.discard(name)
                self._dropped.discard(name)
            case ["returned", "drop", name]:
                self._dropped.add(name)
                self._undecided.discard(name)
                del self._moments[name]
            case ["returned", "index", name]:
                self._indexes.add(name)
            case ["begins", "follow", rows]:
                self._places = [*self._places[-1:], _numbers(rows)] if self._places else []
            case ["returned", "follow", rows]:
                self._places = [_numbers(rows)]

    def broken(self, table: mw.Table) -> list[str]:
        """What of it does not hold; the table is written to, as after a restart."""
        seen = self._kind.rows_of(table.to_arrow())
        return list(
            self._rows(seen)
            or self._blobs(table, seen)
            or self._gone_indexes(table)
            or self._checkpoints(table)
            or self._consumer(table, seen)
            or self._recovery(table)
        )

    def _rows(self, seen: list[Row]) -> list[str]:
        return [str(item) for item in self._oracle.check(seen)]

    def _blobs(self, table: mw.Table, seen: list[Row]) -> list[str]:
        """The bytes of those that were written last; of all others the size was looked at."""
        latest = sorted(seen, key=lambda row: str(row.number).zfill(9))[-_BLOBS_READ:]
        return [f"blob of {row}" for row in latest if _blob(table, row.key) != body(row.key, int(str(row.number)))]

    def _gone_indexes(self, table: mw.Table) -> list[str]:
        there = {index.name for index in table.indexes.list()}
        return [f"index {name} is gone" for name in self._indexes - there]

    def _checkpoints(self, table: mw.Table) -> list[str]:
        there = {checkpoint.name for checkpoint in table.checkpoints.list()}
        wrong = [f"checkpoint {name} is there again" for name in there & self._dropped - self._undecided]
        for name in self._moments.keys() - self._undecided:
            shown = self._kind.rows_of(table.at(name).to_arrow()) if name in there else None
            if shown is None or {row.key: row.number for row in shown} != self._moments[name]:
                wrong.append(f"checkpoint {name} shows {shown}, not {self._moments[name]}")
        return wrong

    def _consumer(self, table: mw.Table, seen: list[Row]) -> list[str]:
        if not self._places:
            return []
        if not any(info.name == "mirror" for info in table.consumers.list()):
            return ["the consumer is gone"]
        batches = list(table.consumers.open("mirror", until="now", columns=["id", "number"]))
        rows = {row.key: row.number for row in seen}
        mirrors = [_followed(place, batches) for place in self._places]
        return [] if rows in mirrors else [f"the consumer has {mirrors}, the table {rows}"]

    def _recovery(self, table: mw.Table) -> Iterator[str]:
        """The log is replayed, written to and flushed; a transaction that returned is not applied once more."""
        with table.writer() as writer:
            if self._write is not None:
                yield from self._repeat(writer, *self._write)
            writer.put(self._kind.batch_of([0], _AFTER), missing="null")
        self._issue([0], _AFTER)
        yield from self._rows(self._kind.rows_of(mw.open_table(table.uri).to_arrow()))

    def _repeat(self, writer: Any, number: int, groups: dict[str, list[int]], deletes: bool, txn: Any) -> Iterator[str]:
        keys = [key for group in groups.values() for key in group]
        if not self._is_acknowledged:
            self._issue(keys, number, deletes=deletes)
        if deletes:
            done = writer.delete(self._kind.keys_of(keys), txn=tuple(txn))
        else:
            again = _REPEATED if self._is_acknowledged else number
            done = writer.put(self._kind.batch_of(keys, again), txn=tuple(txn), missing="null")
        if self._is_acknowledged and not done.skipped:
            yield f"transaction {txn} is forgotten"

    def _issue(self, keys: list[int], number: int, *, deletes: bool = False) -> None:
        self._oracle.issued("after", Write(number, tuple(keys), deletes))
        self._oracle.returned("after", durable=True)


def _numbers(rows: dict[str, int]) -> dict[int, int]:
    return {int(key): number for key, number in rows.items()}


def _followed(place: dict[int, int], batches: list[Any]) -> dict[int, int]:
    state: dict[int, dict[str, int]] = {key: {"id": key, "number": number} for key, number in place.items()}
    for batch in batches:
        apply(state, batch)
    return {key: row["number"] for key, row in state.items()}


def _blob(table: mw.Table, key: int) -> bytes | None:
    file = table.get_blob(key, BODY)
    if file is None:
        return None
    with file:
        return bytes(file.read())


# The rows whose table loses power: every column says which write made it, a blob among them.
#
# Invariant: a row that `rows_of` calls intact has the note and the size of blob that its key and number ask for;
# `body` says what the bytes must be.

BODY = "body"
_LARGE = 6_000  # more than an entry of these tables may have: such rows are loaded in bulk
_FIRST_LAYOUT = pa.field(BODY, pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def body(key: int, number: int) -> bytes | None:
    size = _LARGE if number % 17 == 0 else (key * 7 + number * 13) % 60
    return None if (key + number) % 9 == 0 else f"{key}/{number};".encode() * (size // 4 + 1)


class PowerRows:
    """Rows with one integer key and a blob, in the first or the second layout of Lance."""

    def __init__(self, seed: int) -> None:
        self._kind = TableKind("integer")
        self.schema = self._kind.schema.append(blob_field(BODY) if seed % 3 == 1 else _FIRST_LAYOUT)

    def batch_of(self, keys: Sequence[int], number: int) -> pa.RecordBatch:
        blobs = pa.array([body(key, number) for key in keys], pa.large_binary())
        return self._kind.batch_of(keys, number).append_column(BODY, blobs)

    def keys_of(self, keys: Sequence[int]) -> pa.RecordBatch:
        return self._kind.keys_of(keys)

    def rows_of(self, table: pa.Table) -> list[Row]:
        sizes = [None if shown is None else shown["size"] for shown in table.column(BODY).to_pylist()]
        found = zip(self._kind.rows_of(table), sizes, strict=True)
        return [Row(row.key, row.number, row.intact and size == _size(row)) for row, size in found]


def _size(row: Row) -> int | None:
    blob = body(row.key, row.number) if isinstance(row.number, int) else None
    return None if blob is None else len(blob)


# Orders of writes and syncs that an engine may get wrong: each breaks one of them in this process.


def _no_sync_of_the_log() -> None:
    from lance_memwal.store import local

    local.LocalStore._link_anonymous = _unsynced(local.LocalStore._link_anonymous)  # type: ignore[method-assign]


def _unsynced(honest: Callable[..., None]) -> Callable[..., None]:
    return lambda self, directory, name, data, _flush: honest(self, directory, name, data, None)


def _no_sync_of_names() -> None:
    from lance_memwal.store import files

    files.Syncer.names = lambda *_: None  # type: ignore[assignment, method-assign]


def _no_sync_of_sstables() -> None:
    from lance_memwal.sstable import write

    honest = write.write_sstable
    target = sys.modules["lance_memwal.sstable.target"]
    target.write_sstable = lambda *given, **named: honest(*given, **{**named, "fsync": False})  # type: ignore[attr-defined]


def _no_sync_before_a_trim() -> None:
    from lance_memwal.compact import trim

    trim.let_survive = lambda _base: None


def _no_sync_of_the_new_table() -> None:
    BaseTable.make_durable = lambda _base: None  # type: ignore[method-assign]


def _no_sync_of_our_versions() -> None:
    honest = commit._put_own

    def put(store: Any, path: str, data: bytes, *, fsync: bool) -> None:
        honest(store, path, data, fsync=fsync and not path.startswith("_versions"))

    commit._put_own = put


def _no_sync_of_records() -> None:
    from lance_memwal.store import sequenced

    honest = sequenced.put_or_find
    sequenced.put_or_find = lambda store, path, data, **_: honest(store, path, data, sync=False)


BUGS: Final[dict[str, Callable[[], None]]] = {
    "none": lambda: None,
    "no sync of the log": _no_sync_of_the_log,
    "no sync of names": _no_sync_of_names,
    "no sync of SSTables": _no_sync_of_sstables,
    "no sync before a trim": _no_sync_before_a_trim,
    "no sync of the new table": _no_sync_of_the_new_table,
    "no sync of our versions": _no_sync_of_our_versions,
    "no sync of records": _no_sync_of_records,
}
ONLY_LANCE: Final = frozenset({"no sync before a trim", "no sync of the new table"})
