"""Values that change, in a store where objects never do: numbered objects, of which the highest number counts.

Entry points: `attempts`, the one limit of retries; `update`, the one compare, create and retry; `read_newest`; `Records`, the
numbered JSON objects of one directory; `put_or_find`, a create whose answer may be lost.

1. An object is created if absent, and never changed. Old objects may be removed in ascending order, the newest never.
2. After each create one listing confirms it. A higher number means that the create was not won: GC may have emptied the
   number long after other processes continued from it.
3. "Exists" is answered by reading: this process created the object if it holds the same bytes, and a retry lost the answer.
   So no two callers may create the same bytes.
4. A change whose create was not won is looked for in the newest object, before it is made again.
5. A record is a JSON object of at most `MAX_RECORD_BYTES` and few parts, checked before it is parsed, and before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lance_memwal.clock import RETRY, SYSTEM_CLOCK, Clock
from lance_memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from lance_memwal.store import paths
from lance_memwal.store.port import ObjectStore

_T = TypeVar("_T")
_U = TypeVar("_U")
MAX_TRIES = 64
FEW_TRIES = 6  # of an attempt that takes long
_MISSES = 3
# A consumer names each shard, its position and two points of snapshots: at most 310 bytes, and twice that for 100,000 shards.
MAX_RECORD_BYTES = 64 << 20
_MAX_PARTS = 1_000_000  # brackets and commas: a parsed part may take 50 times its bytes in memory
_BETWEEN_PARTS = (b"{", b"[", b",")
_MAX_COUNT = (1 << 64) - 1
_MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999, the last that a datetime holds
_KEPT = 3  # the newest, and those that another process may be about to read


def attempts(subject: str, clock: Clock = SYSTEM_CLOCK, tries: int = MAX_TRIES) -> Iterator[int]:
    """The numbers of attempts, from 0, with a growing wait between them; `ConflictError` after the last.

    `subject` is what other processes changed during each attempt.
    """
    for attempt in range(tries):
        if attempt:
            RETRY.wait(clock, attempt - 1)
        yield attempt
    raise ConflictError(f"{subject} changed during each of {tries} attempts; retry")


def update(
    subject: str,
    newest: Callable[[], _T],
    change: Callable[[_T], _U],
    create: Callable[[_U], bool],
    landed: Callable[[_U], _U | None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> _U:
    """The object that has a change: the newest one, or the next one, which `change` makes of it.

    `change` returns its argument if there is nothing to change. `create` returns whether the next object exists and is
    the newest. If not, `landed` may find an object with the change: the create may have succeeded without an answer.
    """
    for _ in attempts(subject, clock):
        latest = newest()
        following = change(latest)
        if following is latest or create(following):
            return following
        found = None if landed is None else landed(following)
        if found is not None:
            return found
    raise AssertionError("the last attempt returns or raises")


def put_or_find(
    store: ObjectStore, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True
) -> bytes | None:
    """None once `path` holds `data`, durable with `sync`; otherwise the bytes that it holds instead."""
    try:
        store.put_new(path, data, sync=sync, make_directory=make_directory)
    except ObjectExistsError:
        return found_instead(store, path, data, sync=sync)
    return None


def found_instead(store: ObjectStore, path: str, data: bytes, *, sync: bool) -> bytes | None:
    """The bytes of `path`, or None if they are `data`; that is durable then with `sync`, in which the create may have failed."""
    found = store.get(path)
    if found != data:
        return found
    if sync:
        store.sync_tree(path)
    return None


def read_newest(
    directory: str, numbers: Callable[[], list[int]], read: Callable[[int], _T], clock: Clock = SYSTEM_CLOCK
) -> _T | None:
    """What `read` returns for the highest of the `numbers` in a directory; None if there are none."""
    missed: list[int] = []
    for _ in attempts(directory, clock):
        listed = numbers()
        if not listed:
            return None
        try:
            return read(listed[-1])
        except ObjectNotFoundError as error:  # removed since the listing: a newer one exists
            missed.append(listed[-1])
            if missed.count(listed[-1]) == _MISSES:
                raise CorruptDataError("listed, but not an object: move it away", path=error.path) from None
    raise AssertionError("the last attempt returns or raises")


class _Numbered(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def value(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Record:
    """One numbered record."""

    number: int
    value: Mapping[str, Any]


class Records:
    """The records of one directory: `{directory}/{number}.json`. Threads may share it."""

    __slots__ = ("_store", "directory")

    def __init__(self, store: ObjectStore, directory: str) -> None:
        self._store = store
        self.directory = directory

    def numbers(self) -> list[int]:
        """The numbers on storage, ascending."""
        names = self._store.list_names(self.directory)
        return sorted(number for number in map(paths.parse_record_name, names) if number is not None)

    def newest(self) -> Record | None:
        """The record that counts; None if there is none."""
        return read_newest(self.directory, self.numbers, self.read)

    def read(self, number: int) -> Record:
        """One record; `ObjectNotFoundError` if it does not exist."""
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

    def create(self, record: _Numbered) -> bool:
        """Create a record; whether it counts now. After False the newest record shows who was faster."""
        number = record.number
        if number > paths.LAST_RECORD:
            path = paths.record_path(self.directory, paths.LAST_RECORD)
            raise CorruptDataError(
                "no record can follow the last number, which no writer reaches: remove it", path=path
            )
        path = paths.record_path(self.directory, number)
        data = json.dumps(record.value, separators=(",", ":"), sort_keys=True).encode()
        if len(data) > MAX_RECORD_BYTES:
            raise InvalidInputError(
                f"{path} would have {len(data)} bytes: the table has too many shards to be named in one record"
            )
        if not self._is_created(path, data):
            return False
        numbers = self.numbers()
        if numbers[-1:] != [number]:
            return False
        for old in numbers[:-_KEPT]:
            self._store.delete(paths.record_path(self.directory, old))
        return True

    def _is_created(self, path: str, data: bytes) -> bool:
        for _ in attempts(path):
            try:
                return put_or_find(self._store, path, data, sync=True) is None
            except ObjectNotFoundError:  # "exists", but it does not: the number may still be free
                continue
        return False


def record_names(store: ObjectStore, directory: str) -> list[str]:
    """The names below `directory` that may have records, in order; stray names do not count."""
    return sorted(filter(paths.is_record_name, store.list_names(directory)))


def is_count(value: Any) -> bool:
    """Whether a value of a record is a whole number from 0 on, of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def is_time(value: Any) -> bool:
    """Whether a value of a record is a time that a `datetime` can hold, in milliseconds since 1970."""
    return is_count(value) and value <= _MAX_TIME_MS
