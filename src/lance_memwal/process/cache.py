"""What was read or computed and may be wanted again: one budget of bytes for the whole process.

Owns `CACHE`, which every room uses, and its one setting (`set_cache_bytes`, or `LANCE_MEMWAL_CACHE_BYTES` in the environment when
it is first used). Invariants:

1. What is kept is never more than the limit; over all rooms, the least recently used goes first. A value that is larger than
   the limit is not kept at all. What is dropped lets go of what it holds, if it can, whoever holds on to it.
2. A slot holds one value, and says what it was made of: a value made of something else is not found, and the next one takes
   its place. What it is made of must never change: files that are written once, versions with their stamp.
3. Nothing but time depends on it: whoever finds nothing makes the value again.
4. A forked child begins with nothing: handles and locks stay with the parent.

A slot begins with a word for its kind, so that no two rooms share one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lance_memwal.arguments import check_number, described, digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.process.forking import close_in_child

DEFAULT_CACHE_BYTES = 512 << 20
SMALL_BYTES = 512  # what a fact of a few words costs, with its slot
_VARIABLE = "LANCE_MEMWAL_CACHE_BYTES"

Slot = tuple[Hashable, ...]


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


_T = TypeVar("_T")
_S = TypeVar("_S", bound=_Sized)


@dataclass(frozen=True, slots=True)
class _Entry:
    made_of: Hashable
    value: Any
    size_bytes: int
    let_go: Callable[[], None] | None


class Cache:
    """Values by slot, within a limit of bytes. Threads, and signal handlers on top of them, may share it.

    `hits` and `misses` count what was looked for, and found or not.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        """Without a limit, the environment's or the default."""
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self.hits = self.misses = 0
        self._lock = threading.RLock()  # reentrant: a signal handler may read in the middle of another read
        self._kept: OrderedDict[Slot, _Entry] = OrderedDict()
        self._is_registered = False

    @property
    def limit_bytes(self) -> int:
        """How much may be kept."""
        if self._limit_bytes is None:
            self._limit_bytes = _limit_of_environment()
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        with self._lock:
            self._limit_bytes = limit_bytes
            self._shrink()

    @property
    def size_bytes(self) -> int:
        """How much is kept now."""
        return self._size_bytes

    def find(self, slot: Slot, made_of: Hashable = None) -> Any:
        """The value in `slot`, if it was made of that; else None."""
        if not self._kept:
            self.misses += 1
            return None
        with self._lock:
            found = self._kept.get(slot)
            if found is None or found.made_of != made_of:
                self.misses += 1
                return None
            self.hits += 1
            self._kept.move_to_end(slot)
            return found.value

    def whatever(self, slot: Slot) -> Any:
        """The value in `slot`, whatever it was made of; None if there is none."""
        found = self._kept.get(slot)
        return None if found is None else found.value

    def keep(
        self,
        slot: Slot,
        value: object,
        size_bytes: int,
        made_of: Hashable = None,
        *,
        let_go: Callable[[], None] | None = None,
    ) -> None:
        """Put `value` into `slot`, if it fits; again, if its size has changed. `let_go` is called when it is dropped."""
        if not self._is_registered:
            self._is_registered = True
            close_in_child(self)
        with self._lock:
            self._drop(slot, unless=value)
            if size_bytes <= self.limit_bytes:
                self._kept[slot] = _Entry(made_of, value, size_bytes, let_go)
                self._size_bytes += size_bytes
                self._shrink()

    def fetch(self, slot: Slot, make: Callable[[], _S], made_of: Hashable = None) -> _S:
        """The value in `slot` if it was made of that, else a new one, which is kept if it fits."""
        found: _S | None = self.find(slot, made_of)
        if found is None:
            found = make()
            self.keep(slot, found, found.size_bytes, made_of)
        return found

    def fact(self, slot: Slot, learn: Callable[[], _T]) -> _T:
        """The few words in `slot`, learned once."""
        found: tuple[_T] | None = self.find(slot)
        if found is None:
            found = (learn(),)
            self.keep(slot, found, SMALL_BYTES)
        return found[0]

    def forget(self, slot: Slot) -> None:
        """Empty `slot`; what was in it lets go."""
        with self._lock:
            self._drop(slot)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            while self._kept:
                self._drop(next(iter(self._kept)))

    def orphan(self) -> None:
        """Begin anew in a forked child."""
        self._lock, self._kept, self._size_bytes, self._is_registered = threading.RLock(), OrderedDict(), 0, False

    def _drop(self, slot: Slot, unless: object = None) -> None:
        """Empty `slot`; what was in it lets go, `unless` it is this."""
        found = self._kept.pop(slot, None)
        if found is not None:
            self._size_bytes -= found.size_bytes
            if found.let_go is not None and found.value is not unless:
                found.let_go()

    def _shrink(self) -> None:
        limit_bytes = self.limit_bytes
        while self._size_bytes > limit_bytes:
            self._drop(next(iter(self._kept)))


def _limit_of_environment() -> int:
    given = os.environ.get(_VARIABLE, "")
    if not given:
        return DEFAULT_CACHE_BYTES
    number = digits_of(given)
    if number is None:
        raise InvalidInputError(f"{_VARIABLE} must be a number of bytes, not {described(given)}")
    return number


CACHE = Cache()


def set_cache_bytes(limit_bytes: int) -> None:
    """Keep at most `limit_bytes` of what this process has read of all tables; 0 keeps nothing."""
    CACHE.limit_bytes = check_number("limit_bytes", limit_bytes)
