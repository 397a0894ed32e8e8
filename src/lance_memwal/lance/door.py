"""The door to Lance's own files and datasets below one location.

Owns `LanceDoor`, the port, and `lance_at`, which says who stands behind it: Lance, or whatever a test put in its place
(`Location.lance`). Invariants:

1. What is opened or written below a location goes through its door; manifests, filters and deletion vectors, whose bytes we
   make ourselves, go through its store.
2. Answers are Lance's objects, or objects that answer alike as far as `tests/kit/lance_suite.py` asks. Errors are Lance's:
   the caller translates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import lance
import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter
from lance.fragment import write_fragments

from lance_memwal.store.location import Location


class LanceDoor(Protocol):
    """Datasets and files as Lance has them; paths and directories are relative to the location, "" is the table itself."""

    def dataset(self, directory: str = "", version: int | None = None) -> Any:
        """The dataset in `directory`, at its newest version or at this one."""
        ...

    def write_fragments(self, rows: Any, directory: str, *, base: Any = None, **options: Any) -> Any:
        """Write rows as data files that no version holds yet, of a new dataset or of `base`.

        Returns Lance's operation: `fragments`, and the `new_schema` of a new dataset.
        """
        ...

    def reader(self, path: str, columns: Sequence[str] | None = None) -> Any:
        """The reader of one file."""
        ...

    def writer(self, path: str, schema: pa.Schema, *, version: str) -> Any:
        """The writer of one file, which exists once the writer is closed."""
        ...


class _Lance:
    """Lance itself."""

    __slots__ = ("_location",)

    def __init__(self, location: Location) -> None:
        self._location = location

    def dataset(self, directory: str = "", version: int | None = None) -> Any:
        """The dataset in `directory`, at its newest version or at this one."""
        return lance.dataset(self._uri(directory), version=version, storage_options=self._location.storage_options)

    def write_fragments(self, rows: Any, directory: str, *, base: Any = None, **options: Any) -> Any:
        """Write rows as data files that no version holds yet, of a new dataset or of `base`."""
        transaction: Any = write_fragments(
            rows,
            self._uri(directory) if base is None else base,
            mode="create" if base is None else "append",
            storage_options=self._location.storage_options,
            return_transaction=True,
            **options,
        )
        return transaction.operation

    def reader(self, path: str, columns: Sequence[str] | None = None) -> Any:
        """The reader of one file."""
        wanted = None if columns is None else list(columns)
        return LanceFileReader(self._uri(path), storage_options=self._location.storage_options, columns=wanted)

    def writer(self, path: str, schema: pa.Schema, *, version: str) -> Any:
        """The writer of one file, which exists once the writer is closed."""
        return LanceFileWriter(self._uri(path), schema, version=version, storage_options=self._location.storage_options)

    def _uri(self, path: str) -> str:
        return self._location.child_uri(path) if path else self._location.dataset_uri


def lance_at(location: Location) -> LanceDoor:
    """The door of this location."""
    given: LanceDoor | None = location.lance
    return _Lance(location) if given is None else given
