"""A store around another one: a wrapper says only what it changes.

Owns `WrappedStore`, the base of metering, retries, faults, and of what a test or a user puts around a store. Invariants:

1. One call outside is one call of `around`, which has the method's name, the method of `inner` and its arguments; the path
   is always the first of them.
2. A wrapper that overrides nothing changes nothing.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar

from lance_memwal.store.port import ObjectMeta, ObjectStore, PutResult

_T = TypeVar("_T")


class WrappedStore:
    """`inner`, with `around` in the way of every call."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:  # noqa: ARG002
        """Carry out `call(path, *rest, **options)`, which is the method `kind` of `inner`."""
        return call(path, *rest, **options)

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """Create `path` with `data`, whole, or raise `ObjectExistsError`."""
        return self.around("put_new", self.inner.put_new, path, data, sync=sync, make_directory=make_directory)

    def make_directory(self, path: str) -> None:
        """Let the directory `path` exist, where the store has directories."""
        self.around("make_directory", self.inner.make_directory, path)

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replace `path` atomically."""
        self.around("put", self.inner.put, path, data, sync=sync)

    def get(self, path: str) -> bytes:
        """All bytes of `path`."""
        return self.around("get", self.inner.get, path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` on; shorter where the object ends."""
        return self.around("get_range", self.inner.get_range, path, start, length)

    def get_tail(self, path: str, length: int) -> bytes:
        """The last `length` bytes, or the whole object if it is shorter."""
        return self.around("get_tail", self.inner.get_tail, path, length)

    def head(self, path: str) -> ObjectMeta:
        """Size and time of `path`."""
        return self.around("head", self.inner.head, path)

    def list(self, prefix: str) -> builtins.list[ObjectMeta]:
        """Every object below the directory `prefix` (recursive), in no order."""
        return self.around("list", self.inner.list, prefix)

    def list_names(self, prefix: str) -> builtins.list[str]:
        """The names directly below the directory `prefix`, objects and directories alike, in no order."""
        return self.around("list_names", self.inner.list_names, prefix)

    def delete(self, path: str) -> None:
        """Remove `path`; absent is fine."""
        self.around("delete", self.inner.delete, path)

    def sync_tree(self, prefix: str) -> None:
        """Make every file and directory below `prefix`, and the name `prefix` itself, survive power loss."""
        self.around("sync_tree", self.inner.sync_tree, prefix)
