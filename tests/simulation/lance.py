"""What stands in for Lance: datasets and files whose rows are Arrow messages in a store.

Owns `MemoryLance`, a `lance_memwal.lance.door.LanceDoor` for flat columns. Manifests, deletion vectors and filters are the
real ones, since the engine makes and reads them itself; only the bytes of data files differ. What the engine asks of a
dataset, and nothing else, is answered here: `tests/kit/lance_suite.py` asks the same of Lance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from lance.schema import LanceSchema

from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.lance.deletions import decode_deletions
from lance_memwal.lance.manifest import (
    VERSIONS_DIR,
    Fragment,
    LanceManifest,
    data_path,
    deletion_path,
    parse_lance_manifest,
    parse_version_name,
    version_path,
)
from lance_memwal.store.port import ObjectStore

_MAGIC = b"LANC"  # how a data file ends
_FIELDS = 1  # in a manifest
_VERSION = (2, 1)


class MemoryLance:
    def __init__(self, store: ObjectStore, new_name: Callable[[], str]) -> None:
        self._store = store
        self._new_name = new_name

    def dataset(self, directory: str = "", version: int | None = None) -> Any:
        newest = _newest_version(self._store, directory)
        if newest is None:
            raise ValueError(f"Dataset at path {directory or '.'} was not found")
        return _Dataset(self._store, directory, newest if version is None else version)

    def write_fragments(self, rows: Any, directory: str, *, base: Any = None, **options: Any) -> Any:
        del options
        table = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows
        schema = LanceSchema.from_pyarrow(table.schema) if base is None else base.lance_schema
        data, name = _encode(table), f"{self._new_name()}.lance"
        self._store.put(_below(directory, data_path(name)), data)
        ids = range(len(table.schema)) if base is None else [field.id() for field in schema.fields()]
        file = SimpleNamespace(
            path=name,
            fields=list(ids),
            column_indices=list(range(len(table.schema))),
            file_major_version=_VERSION[0],
            file_minor_version=_VERSION[1],
            file_size_bytes=len(data),
        )
        fragments = [SimpleNamespace(files=[file], physical_rows=table.num_rows)] if table.num_rows or not base else []
        return SimpleNamespace(fragments=fragments, new_schema=schema)

    def reader(self, path: str, columns: Sequence[str] | None = None) -> Any:
        table = _decode(self._store, path)
        return _Reader(table if columns is None else table.select(list(columns)))

    def writer(self, path: str, schema: pa.Schema, *, version: str) -> Any:
        del version
        return _Writer(self._store, path, schema)


def _below(directory: str, path: str) -> str:
    return f"{directory}/{path}" if directory else path


def _newest_version(store: ObjectStore, directory: str) -> int | None:
    names = map(parse_version_name, store.list_names(_below(directory, VERSIONS_DIR)))
    return max((version for version in names if version is not None), default=None)


def _encode(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes() + _MAGIC


def _decode(store: ObjectStore, path: str) -> pa.Table:
    try:
        data = store.get(path)
    except ObjectNotFoundError:
        raise OSError(f"Object at location {path} not found") from None
    if not data.endswith(_MAGIC):
        raise OSError(f"{path} has no footer")
    return pa.ipc.open_stream(data[: -len(_MAGIC)]).read_all()


class _Writer:
    def __init__(self, store: ObjectStore, path: str, schema: pa.Schema) -> None:
        self._store, self._path, self._schema = store, path, schema
        self._batches: list[pa.RecordBatch] = []
        self._metadata: dict[str, str] = {}

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def add_schema_metadata(self, key: str, value: str) -> None:
        self._metadata[key] = value

    def close(self) -> None:
        table = pa.Table.from_batches(self._batches, schema=self._schema)
        self._store.put(self._path, _encode(table.replace_schema_metadata(self._metadata)))


class _Rows:
    def __init__(self, table: pa.Table, batch_rows: int | None = None) -> None:
        self._table, self._batch_rows = table, batch_rows

    def to_table(self) -> pa.Table:
        return self._table

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.combine_chunks().to_batches(max_chunksize=self._batch_rows)


class _Reader:
    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def num_rows(self) -> int:
        return int(self._table.num_rows)

    def metadata(self) -> Any:
        return SimpleNamespace(schema=self._table.schema, num_rows=self._table.num_rows)

    def read_all(self) -> _Rows:
        return _Rows(self._table.replace_schema_metadata(None))

    def read_range(self, start: int, num_rows: int, *, batch_size: int = 1024) -> _Rows:
        return _Rows(self._table.replace_schema_metadata(None).slice(start, num_rows), batch_size)

    def take_rows(self, rows: Sequence[int]) -> _Rows:
        return _Rows(self._table.replace_schema_metadata(None).take(pa.array(rows, pa.int64())))


class _Fragment:
    def __init__(self, dataset: _Dataset, fragment: Fragment) -> None:
        self._dataset, self.fragment = dataset, fragment
        self.fragment_id = fragment.id
        self.physical_rows = fragment.physical_rows

    def scanner(self, **options: Any) -> _Scanner:
        return _Scanner(self._dataset, [self], **options)


class _Dataset:
    def __init__(self, store: ObjectStore, directory: str, version: int) -> None:
        self._store, self._directory, self.version = store, directory, version
        path = _below(directory, version_path(version))
        try:
            self._manifest: LanceManifest = parse_lance_manifest(store.get(path), path=path)
        except ObjectNotFoundError:
            raise ValueError(f"Dataset version {version} was not found") from None

    @property
    def latest_version(self) -> int:
        newest = _newest_version(self._store, self._directory)
        if newest is None:
            raise OSError("Dataset was not found")
        return newest

    def checkout_version(self, version: int) -> _Dataset:
        return _Dataset(self._store, self._directory, version)

    @cached_property
    def lance_schema(self) -> Any:
        messages = [field.as_bytes() for field in self._manifest.message if field.number == _FIELDS]
        metadata = {key: list(value) for key, value in self._manifest.schema_metadata().items()}
        return LanceSchema._from_protos(json.dumps(metadata), *messages)

    @cached_property
    def schema(self) -> pa.Schema:
        return self.lance_schema.to_pyarrow()

    @property
    def data_storage_version(self) -> str:
        return self._manifest.data_storage_version

    @property
    def has_stable_row_ids(self) -> bool:
        return self._manifest.has_stable_row_ids

    @property
    def tags(self) -> Any:
        return SimpleNamespace(list=dict)

    def validate(self) -> None:
        for _ in self.scanner().to_batches():
            pass

    def count_rows(self) -> int:
        fragments = self._manifest.fragments()
        return sum(f.physical_rows - (f.deletion.num_deleted_rows if f.deletion else 0) for f in fragments)

    def get_fragments(self) -> list[_Fragment]:
        return [_Fragment(self, fragment) for fragment in self._manifest.fragments()]

    def get_fragment(self, number: int) -> _Fragment | None:
        return next((item for item in self.get_fragments() if item.fragment_id == number), None)

    def scanner(self, **options: Any) -> _Scanner:
        chosen = options.pop("fragments", None)
        return _Scanner(self, self.get_fragments() if chosen is None else chosen, **options)

    def to_table(self, **options: Any) -> pa.Table:
        return self.scanner(**options).to_table()

    def _take_rows(self, row_ids: Sequence[int], columns: Sequence[str]) -> pa.Table:
        whole = self.to_table(columns=list(columns), with_row_address=True)
        at = {address: row for row, address in enumerate(whole.column("_rowaddr").to_pylist())}
        return whole.select(list(columns)).take(pa.array([at[number] for number in row_ids], pa.int64()))

    def rows(self, fragment: Fragment) -> tuple[pa.Table, np.ndarray]:
        """The live rows of a fragment, and their offsets."""
        table = _decode(self._store, _below(self._directory, data_path(fragment.files[0].path)))
        names = {field.id: field.name for field in self._manifest.fields}
        stored = [names.get(number, "") for number in fragment.files[0].field_ids]
        table = table.rename_columns(stored)
        offsets = np.arange(fragment.physical_rows)
        if fragment.deletion is not None:
            path = _below(self._directory, deletion_path(fragment.id, fragment.deletion))
            gone = decode_deletions(self._store.get(path), physical_rows=fragment.physical_rows)
            offsets = np.delete(offsets, gone)
            table = table.take(pa.array(offsets))
        return table, offsets


class _Scanner:
    def __init__(
        self,
        dataset: _Dataset,
        fragments: Sequence[_Fragment],
        *,
        columns: Sequence[str] | None = None,
        with_row_address: bool = False,
        with_row_id: bool = False,
        batch_size: int | None = None,
        limit: int | None = None,
        offset: int | None = None,
        filter: Any = None,  # noqa: A002
        **hints: Any,
    ) -> None:
        if filter is not None:
            raise NotImplementedError("filters are for Lance")
        self._dataset, self._fragments, self._batch_rows = dataset, fragments, batch_size
        self._columns = dataset.schema.names if columns is None else list(columns)
        self._address, self._row_id = with_row_address, with_row_id
        self._limit, self._offset = limit, offset or 0

    def to_table(self) -> pa.Table:
        schema = self._schema()
        parts = [self._part(item.fragment, schema) for item in self._fragments]
        table = pa.concat_tables(parts) if parts else schema.empty_table()
        return table.slice(self._offset, self._limit) if self._offset or self._limit is not None else table

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.to_table().to_batches(max_chunksize=self._batch_rows)

    def _schema(self) -> pa.Schema:
        fields = [self._dataset.schema.field(name) for name in self._columns if name != "_rowid"]
        fields += [pa.field("_rowid", pa.uint64())] if self._row_id or "_rowid" in self._columns else []
        return pa.schema(fields + ([pa.field("_rowaddr", pa.uint64())] if self._address else []))

    def _part(self, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        table, offsets = self._dataset.rows(fragment)
        addresses = pa.array((np.uint64(fragment.id) << np.uint64(32)) | offsets.astype(np.uint64))
        columns = [addresses if field.name in ("_rowid", "_rowaddr") else table.column(field.name) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)
