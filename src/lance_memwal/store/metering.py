"""Counts and times every call to a store.

Owns `MeteredStore`. Invariants:

1. Metering changes nothing: same results, same errors, one call inside for one call outside.
2. `ObjectExistsError` and `ObjectNotFoundError` are answers of the store; only other errors count as failed.
3. `size_bytes` counts the bytes that were stored or read, so a refused or failed call adds none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import ObjectExistsError, ObjectNotFoundError
from lance_memwal.store.metrics import Metrics
from lance_memwal.store.port import ObjectMeta, ObjectStore, PutResult

__all__ = ["MeteredStore"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class MeteredStore:
    """Records each call to `inner` in `metrics`, by the name of the method."""

    def __init__(self, inner: ObjectStore, metrics: Metrics, clock: Clock = SYSTEM_CLOCK) -> None:
        self._inner = inner
        self._record = metrics.record
        self._monotonic = clock.monotonic

    def __repr__(self) -> str:
        return f"MeteredStore({self._inner!r})"

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """Create `path` with `data`, whole, or raise `ObjectExistsError`."""
        started = self._monotonic()
        try:
            result = self._inner.put_new(path, data, sync=sync, make_directory=make_directory)
        except BaseException as error:
            self._record("put_new", self._monotonic() - started, failed=not isinstance(error, ObjectExistsError))
            raise
        self._record("put_new", self._monotonic() - started, len(data))
        return result

    def make_directory(self, path: str) -> None:
        """Let the directory `path` exist, where the store has directories."""
        self._measure("make_directory", self._inner.make_directory, path)

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replace `path` atomically."""
        started = self._monotonic()
        try:
            self._inner.put(path, data, sync=sync)
        except BaseException:
            self._record("put", self._monotonic() - started, failed=True)
            raise
        self._record("put", self._monotonic() - started, len(data))

    def get(self, path: str) -> bytes:
        """All bytes of `path`."""
        return self._read("get", self._inner.get, path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` on; shorter where the object ends."""
        return self._read("get_range", self._inner.get_range, path, start, length)

    def get_tail(self, path: str, length: int) -> bytes:
        """The last `length` bytes, or the whole object if it is shorter."""
        return self._read("get_tail", self._inner.get_tail, path, length)

    def head(self, path: str) -> ObjectMeta:
        """Size and time of `path`."""
        return self._measure("head", self._inner.head, path)

    def list_names(self, prefix: str) -> list[str]:
        """The names directly below the directory `prefix`, objects and directories alike, in no order."""
        return self._measure("list_names", self._inner.list_names, prefix)

    def list(self, prefix: str) -> list[ObjectMeta]:
        """Every object below the directory `prefix` (recursive), in no order."""
        return self._measure("list", self._inner.list, prefix)

    def delete(self, path: str) -> None:
        """Remove `path`; absent is fine."""
        self._measure("delete", self._inner.delete, path)

    def sync_tree(self, prefix: str) -> None:
        """Make every file and directory below `prefix`, and the name `prefix` itself, survive power loss."""
        self._measure("sync_tree", self._inner.sync_tree, prefix)

    def _read(self, kind: str, call: Callable[_P, bytes], *args: _P.args, **kwargs: _P.kwargs) -> bytes:
        started = self._monotonic()
        try:
            data = call(*args, **kwargs)
        except BaseException as error:
            self._record(kind, self._monotonic() - started, failed=not isinstance(error, ObjectNotFoundError))
            raise
        self._record(kind, self._monotonic() - started, len(data))
        return data

    def _measure(self, kind: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        started = self._monotonic()
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            self._record(kind, self._monotonic() - started, failed=not isinstance(error, ObjectNotFoundError))
            raise
        self._record(kind, self._monotonic() - started)
        return result
