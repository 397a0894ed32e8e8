"""What a table must hold after an outage: rows with their blobs, transactions, checkpoints, and the place of a consumer.

Owns `Promises`. A mark of the trace says what began, a second one that it returned. What returned is promised; what began
and did not may have happened, or not. The life is one thread, so that at most one thing is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lance_memwal as mw
from tests.harness.oracle import Oracle, Row, Write
from tests.kit.feeds import apply
from tests.power.disk import Kind, Record
from tests.power.power_rows import BODY, PowerRows, body

__all__ = ["Promises"]

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
        there = {index.name for index in table.list_indices()}
        return [f"index {name} is gone" for name in self._indexes - there]

    def _checkpoints(self, table: mw.Table) -> list[str]:
        there = {checkpoint.name for checkpoint in table.checkpoints()}
        wrong = [f"checkpoint {name} is there again" for name in there & self._dropped - self._undecided]
        for name in self._moments.keys() - self._undecided:
            shown = self._kind.rows_of(table.at(name).to_arrow()) if name in there else None
            if shown is None or {row.key: row.number for row in shown} != self._moments[name]:
                wrong.append(f"checkpoint {name} shows {shown}, not {self._moments[name]}")
        return wrong

    def _consumer(self, table: mw.Table, seen: list[Row]) -> list[str]:
        if not self._places:
            return []
        if not any(info.name == "mirror" for info in table.consumers()):
            return ["the consumer is gone"]
        batches = list(table.consumer("mirror", until="now", columns=["id", "number"]))
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
