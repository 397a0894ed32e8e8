"""Numbered records: a value that changes, in a store where objects never do.

Owns `Records`: `{directory}/{n}.json`, of which the highest number counts. Invariants:

1. A record is created if it is absent, and never changed.
2. After every create there is one listing. A higher number means that the create was not won: the slot may be one that
   somebody emptied, long after others went on from it.
3. Old records may be removed, the newest never: numbers only grow.
4. A record is a JSON object, whole. Who reads it checks what it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lance_memwal.errors import ConflictError, CorruptDataError, ObjectNotFoundError
from lance_memwal.store import paths
from lance_memwal.store.own import put_or_find
from lance_memwal.store.port import ObjectStore

__all__ = ["Record", "Records", "is_count"]

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
        for _ in range(_MAX_TRIES):
            numbers = self.numbers()
            if not numbers:
                return None
            try:
                return self.read(numbers[-1])
            except ObjectNotFoundError:  # removed since the listing: a newer one is there
                continue
        raise ConflictError(f"the records below {self.directory} change faster than they can be read; retry")

    def read(self, number: int) -> Record:
        """One record; `ObjectNotFoundError` if it is not there."""
        path = paths.record_path(self.directory, number)
        try:
            value = json.loads(self._store.get(path))
        except (ValueError, RecursionError) as error:
            raise CorruptDataError("a record is not JSON", path=path) from error
        if not isinstance(value, dict):
            raise CorruptDataError("a record is not an object", path=path)
        return Record(number, value)

    def create(self, number: int, value: Mapping[str, Any]) -> bool:
        """Create a record; whether it is the one that counts now.

        Two callers must not create the same bytes. After a False the newest record says who was faster.
        """
        path = paths.record_path(self.directory, number)
        data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
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


def is_count(value: Any) -> bool:
    """Whether what a record says is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
