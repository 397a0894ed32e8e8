"""The store port: what the engine asks of object storage, and what it may rely on.

Owns the `ObjectStore` Protocol. Paths are relative to the root of the store, with "/" between parts, spelled by
`lance_memwal.store.paths` only. Guarantees of every adapter:

S1. `put_new` creates the object whole or not at all: no reader ever sees a part of it, and among any number of
    racing creators of one path exactly one gets `CREATED`.
S2. `put_new` is one conditional request, never a check followed by a write.
S3. With `sync=True` on a local path, the bytes and the name survive power loss when the call returns. Stores that
    acknowledge durable writes by themselves ignore the flag.
S4. `get`, `get_range`, `get_tail` and `head` raise `ObjectNotFoundError` only if the store said that there is no such
    object; any other trouble is `UnavailableError`. A storage error is never read as absence.
S5. `list` returns every object whose creation was acknowledged before the call; an absent prefix is an empty list.
S6. `delete` of an absent object succeeds.
S7. Where the store has directories, `put_new(make_directory=False)` into one that is gone raises
    `DirectoryNotFoundError` and leaves nothing behind, and so does `make_directory` inside of one that is gone. Object
    stores have none and ignore both.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class PutResult(Enum):
    """Outcome of a successful create-only put."""

    CREATED = "created"
    RECOGNISED = "recognised"  # an earlier attempt of this call lost its acknowledgement; the object holds our bytes


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a listing or head says of one object.

    `stamp` tells objects of one path, size and time apart, as well as the store can; services count time in seconds.
    """

    path: str
    size_bytes: int
    modified_ms: int
    stamp: str = ""


class ObjectStore(Protocol):
    """A flat namespace of immutable objects; see the module's guarantees S1 to S7."""

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """Create `path` with `data`, whole, or raise `ObjectExistsError`."""
        ...

    def make_directory(self, path: str) -> None:
        """Let the directory `path` exist inside of one that does, where the store has directories."""
        ...

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replace `path` atomically. Only for hints and for directories that nobody can know of yet."""
        ...

    def get(self, path: str) -> bytes:
        """All bytes of `path`."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` on; shorter where the object ends."""
        ...

    def get_tail(self, path: str, length: int) -> bytes:
        """The last `length` bytes, or the whole object if it is shorter."""
        ...

    def head(self, path: str) -> ObjectMeta:
        """Size and time of `path`."""
        ...

    def list(self, prefix: str) -> builtins.list[ObjectMeta]:
        """Every object below the directory `prefix` (recursive), in no order."""
        ...

    def list_names(self, prefix: str) -> builtins.list[str]:
        """The names directly below the directory `prefix`, objects and directories alike, in no order."""
        ...

    def delete(self, path: str) -> None:
        """Remove `path`; absent is fine. Of a directory, where there are any, only empty ones are removed; "" is the root."""
        ...

    def sync_tree(self, prefix: str) -> None:
        """Make every file and directory below `prefix`, and the name `prefix` itself, survive power loss (local paths)."""
        ...
