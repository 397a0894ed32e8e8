"""Numbered records: a value that changes, in a store where objects never do.

Owns `Records`: `{directory}/{n}.json`, of which the highest number counts, and what a name, a number and a time in a record
may be. Invariants:

1. A record is created if it is absent, and never changed.
2. After every create there is one listing. A higher number means that the create was not won: the slot may be one that
   somebody emptied, long after others went on from it.
3. Old records may be removed, the newest never: numbers only grow.
4. A record is a JSON object, whole, of at most `MAX_RECORD_BYTES` and few parts, which is looked at before it is parsed; a
   longer one is not written either. Who reads it checks what it says.
5. A number that is listed and never found is damage: nobody removes the newest record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lance_memwal.errors import ConflictError, CorruptDataError, InvalidInputError, ObjectNotFoundError
from lance_memwal.store import paths
from lance_memwal.store.own import put_or_find
from lance_memwal.store.port import ObjectStore

__all__ = ["MAX_RECORD_BYTES", "Record", "Records", "is_count", "is_time", "record_names"]

# A consumer says of each shard where it stands, what it needs no more, and two points of snapshots: 310 bytes with the widest
# numbers. So 100,000 shards fit twice; of their commas there are 200,000.
MAX_RECORD_BYTES = 64 << 20
_MAX_PARTS = 1_000_000  # brackets and commas: what stands between two of them may take 50 times its bytes in memory
_BETWEEN_PARTS = (b"{", b"[", b",")
_MAX_COUNT = (1 << 64) - 1
_MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999, the last that a datetime holds
_MAX_TRIES = 64
_KEPT = 3  # the newest, and those that somebody may be about to read


@dataclass(frozen=True, slots=True)
class Record:
    """One numbered record."""

    number: int
    value: Mapping[str, Any]


class Records:
    """The records of one directory. Threads may share it."""

    __slots__ = ("_store", "directory")

    def __init__(self, store: ObjectStore, directory: str) -> None:
        self._store = store
        self.directory = directory

    def numbers(self) -> list[int]:
        """The numbers that are there, ascending."""
        names = self._store.list_names(self.directory)
        return sorted(number for number in map(paths.parse_record_name, names) if number is not None)

    def newest(self) -> Record | None:
        """The record that counts; None if there is none."""
        missed = set()
        for _ in range(_MAX_TRIES):
            numbers = self.numbers()
            if not numbers:
                return None
            try:
                return self.read(numbers[-1])
            except ObjectNotFoundError:  # removed since the listing: a newer one is there
                missed.add(numbers[-1])
        if len(missed) == 1:
            path = paths.record_path(self.directory, *missed)
            raise CorruptDataError("a record is listed, but there is none: move away what lies in its place", path=path)
        raise ConflictError(f"the records below {self.directory} change faster than they can be read; retry")

    def read(self, number: int) -> Record:
        """One record; `ObjectNotFoundError` if it is not there."""
        path = paths.record_path(self.directory, number)
        data = self._store.get_range(path, 0, MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES or sum(map(data.count, _BETWEEN_PARTS)) > _MAX_PARTS:
            raise CorruptDataError("a record is larger than any that is written", path=path)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptDataError("a record is not JSON", path=path) from error
        if not isinstance(value, dict):
            raise CorruptDataError("a record is not an object", path=path)
        return Record(number, value)

    def create(self, number: int, value: Mapping[str, Any]) -> bool:
        """Create a record; whether it is the one that counts now.

        Two callers must not create the same bytes. After a False the newest record says who was faster.
        """
        if number > paths.LAST_RECORD:
            last = paths.record_path(self.directory, paths.LAST_RECORD)
            raise CorruptDataError(
                "no record can follow the last number, which nobody counts up to: remove it", path=last
            )
        path = paths.record_path(self.directory, number)
        data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        if len(data) > MAX_RECORD_BYTES:
            raise InvalidInputError(
                f"{path} would have {len(data)} bytes: the table has too many shards to be named in one record"
            )
        if not self._hold(path, data):
            return False
        numbers = self.numbers()
        if numbers[-1:] != [number]:
            return False
        for old in numbers[:-_KEPT]:
            self._store.delete(paths.record_path(self.directory, old))
        return True

    def _hold(self, path: str, data: bytes) -> bool:
        """Let `path` hold `data`; whether it does, and nobody else's bytes."""
        for _ in range(_MAX_TRIES):
            try:
                return put_or_find(self._store, path, data, sync=True) is None
            except ObjectNotFoundError:  # "exists already", but nothing does: the number may still be had
                continue
        raise ConflictError(f"{path} can neither be created nor read; retry")


def record_names(store: ObjectStore, directory: str) -> list[str]:
    """The names below `directory` that may have records, in order; stray names do not count."""
    return sorted(filter(paths.is_record_name, store.list_names(directory)))


def is_count(value: Any) -> bool:
    """Whether what a record says is a whole number from 0 on, of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def is_time(value: Any) -> bool:
    """Whether what a record says is a time that a `datetime` can hold, in milliseconds since 1970."""
    return is_count(value) and value <= _MAX_TIME_MS
