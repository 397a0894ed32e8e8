"""A store in the memory of the process, for lives that are over in milliseconds.

Owns `MemoryObjects`, an adapter of `lance_memwal.store.port` like any other: it passes the same suite.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable

from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError
from lance_memwal.store.port import ObjectMeta, PutResult

__all__ = ["MemoryObjects"]


class MemoryObjects:
    """Objects by name. One step each: nothing is ever seen half done. There are no directories."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._objects: dict[str, tuple[bytes, ObjectMeta]] = {}
        self._puts = 0

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        del sync, make_directory
        _check_path(path)
        self._puts += 1
        made = (bytes(data), ObjectMeta(path, len(data), self._now_ms(), str(self._puts)))
        if self._objects.setdefault(path, made) is not made:
            raise ObjectExistsError(path)
        return PutResult.CREATED

    def make_directory(self, path: str) -> None:
        """There are none."""

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        del sync
        _check_path(path)
        self._puts += 1
        self._objects[path] = (bytes(data), ObjectMeta(path, len(data), self._now_ms(), str(self._puts)))

    def _need(self, path: str) -> tuple[bytes, ObjectMeta]:
        found = self._objects.get(path)
        if found is None:
            _check_path(path)
            raise ObjectNotFoundError(path)
        return found

    def get(self, path: str) -> bytes:
        return self._need(path)[0]

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise InvalidInputError("a range cannot be negative")
        return self._need(path)[0][start : start + length]

    def get_tail(self, path: str, length: int) -> bytes:
        if length < 0:
            raise InvalidInputError("a length cannot be negative")
        data = self._need(path)[0]
        return data[max(0, len(data) - length) :]

    def head(self, path: str) -> ObjectMeta:
        return self._need(path)[1]

    def list(self, prefix: str) -> builtins.list[ObjectMeta]:
        start = _start(prefix)
        return [meta for path, (_, meta) in tuple(self._objects.items()) if path.startswith(start)]

    def list_names(self, prefix: str) -> builtins.list[str]:
        start = _start(prefix)
        below = (path[len(start) :] for path in tuple(self._objects) if path.startswith(start))
        return builtins.list(dict.fromkeys(path.partition("/")[0] for path in below))

    def delete(self, path: str) -> None:
        if path:
            _check_path(path)
        self._objects.pop(path, None)

    def sync_tree(self, prefix: str) -> None:
        """Memory needs no sync."""

    def items(self) -> builtins.list[tuple[str, bytes]]:
        """All objects."""
        return [(path, data) for path, (data, _) in self._objects.items()]

    def copy(self, now_ms: Callable[[], int]) -> MemoryObjects:
        """Another store with the same objects."""
        other = MemoryObjects(now_ms)
        other._objects, other._puts = dict(self._objects), self._puts
        return other


def _start(prefix: str) -> str:
    directory = prefix.rstrip("/")
    if prefix:
        _check_path(directory)
    return f"{directory}/" if prefix else ""


def _check_path(path: str) -> None:
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidInputError(f"not a path below a table: {path!r}")
