"""What a compaction has written for a commit that is still to come.

Owns `Unheld` and `Vectors`. Both outlive a lost race: the next attempt, on a newer version, uses them again. Invariants:

1. A file is removed only while it is certain that no version holds it and no commit of it is under way: an outcome that
   is not known counts as a commit.
2. A deletion vector serves exactly the fragment that it was made for, down to the bytes that describe it: the same data
   files and the same earlier deletions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lance_memwal.errors import ConflictError, MemWalError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.manifest import DeletionFile, deletion_path
from lance_memwal.store.port import ObjectStore

_LOG = logging.getLogger(__name__)


class Unheld:
    """Files in the base table's directory that no version holds, so far."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._paths: list[str] = []
        self._may_be_held = False

    def add(self, *paths: str) -> None:
        """Remember files that exist, or that are about to be written."""
        self._paths += paths

    @contextmanager
    def offered(self) -> Iterator[None]:
        """A commit of all files. Afterwards a version may hold them, unless it ends with `ConflictError`."""
        self._may_be_held = True
        try:
            yield
        except ConflictError:
            self._may_be_held = False
            raise

    def drop(self, path: str) -> None:
        """Remove one file that will not be committed."""
        self._paths = [other for other in self._paths if other != path]
        try:
            self._store.delete(path)
        except MemWalError as error:  # Lance's clean-up of old versions takes it
            _LOG.debug("a file of a lost attempt was left [path=%s]: %s", path, error)

    def remove(self) -> None:
        """Remove all files, if that is safe."""
        if not self._may_be_held:
            for path in list(self._paths):
                self.drop(path)


class Vectors:
    """Which fragments lose rows, and the deletion vectors that say which ones."""

    def __init__(self, files: Unheld) -> None:
        self._files = files
        self._known: dict[bytes, tuple[int, DeletionFile | None] | None] = {}

    def unseen(self, base: BaseTable) -> list[int]:
        """The fragments of `base` that nobody has looked at as they are now. What was made for others is removed."""
        present = base.fragment_messages
        for gone in set(self._known) - set(present.values()):
            self._drop(self._known.pop(gone))
        return [number for number, message in present.items() if message not in self._known]

    def _drop(self, found: tuple[int, DeletionFile | None] | None) -> None:
        if found is not None and found[1] is not None:
            self._files.drop(deletion_path(found[0], found[1]))

    def learn(self, base: BaseTable, numbers: list[int], found: Mapping[int, DeletionFile | None]) -> None:
        """Of the fragments `numbers` of `base`, those in `found` lose rows; None: no row is left of one."""
        present = base.fragment_messages
        for number in numbers:
            self._known[present[number]] = (number, found[number]) if number in found else None

    def of(self, base: BaseTable) -> dict[int, DeletionFile | None]:
        """The fragments of `base` that lose rows, with their vectors; all of them were looked at."""
        found = (self._known[message] for message in base.fragment_messages.values())
        return dict(item for item in found if item is not None)
