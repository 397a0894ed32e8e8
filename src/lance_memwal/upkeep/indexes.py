"""Indexes of the base table: made, listed and dropped, and mirrored by fresh tiers.

Owns `create_index`, `list_indexes`, `drop_index` and what the default type of an index is. Invariants:

1. Lance makes the index, and everybody who opens the table has it. It survives power loss when the call returns.
2. Where the table names the indexes that it maintains one by one, a new one that can be mirrored is named, too, and one
   that is dropped is not any more. Reads are exact with and without it: fresh rows that have no mirror are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import check_choice, check_column, check_flag, check_text
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.commit import let_survive
from lance_memwal.lance.details import INDEX_NAME
from lance_memwal.memtable.index import BTreeIndex, FtsIndex, HnswIndex, IndexSpec
from lance_memwal.memtable.index.vectors import is_searchable
from lance_memwal.sstable.maintained import choose_maintained, maintained_names, with_names
from lance_memwal.sstable.mirrors import index_names, mirrored_specs

_VECTOR_TYPES = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
_SCALAR_TYPES = ("BTREE", "BITMAP", "LABEL_LIST", "INVERTED", "NGRAM", "ZONEMAP", "BLOOMFILTER", "RTREE")
_OTHER_NAMES = {"FTS": "INVERTED", "HNSW": "IVF_HNSW_SQ"}


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index of the base table. `rows` are those of the base table that it covers; `maintained`: fresh tiers mirror it."""

    name: str
    index_type: str
    columns: tuple[str, ...]
    rows: int
    maintained: bool


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """What a user asked for: the type as Lance spells it, and the options of its builder."""

    column: str
    index_type: str
    name: str | None
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        asked: str | IndexSpec,
        index_type: str | None,
        name: str | None,
        options: Mapping[str, Any],
        columns: pa.Schema,
    ) -> IndexRequest:
        """`asked` is a column, or an index as writers take it; `InvalidInputError` if the table cannot have it."""
        if isinstance(asked, BTreeIndex | FtsIndex | HnswIndex):
            if index_type is not None or options:
                raise InvalidInputError("give an index, or a column with the type and the options of its index")
            asked.validate(columns)
            return cls(asked.column, asked.lance_type, name or asked.name, asked.lance_options())
        check_column(check_text("column", asked), columns.names)
        kind = columns.field(asked).type
        if index_type is None:
            return cls(asked, "IVF_HNSW_SQ" if is_searchable(kind) else "BTREE", name, options)
        named = check_text("index_type", index_type).upper()
        named = _OTHER_NAMES.get(named, named)
        check_choice("index_type", named, _VECTOR_TYPES if is_searchable(kind) else _SCALAR_TYPES)
        return cls(asked, named, name, options)

    @property
    def is_vector(self) -> bool:
        """Whether it is made of vectors, which it groups by those that are there when it is made."""
        return self.index_type in _VECTOR_TYPES


def create_index(newest_base: Callable[[], BaseTable], request: IndexRequest, *, replace: bool) -> IndexInfo:
    """Make the index; with `replace` instead of one of its name."""
    check_flag("replace", replace)
    base = newest_base()
    name = request.name or f"{request.column}_idx"
    if not replace and name in index_names(base):
        raise InvalidInputError(f"the table has an index {name!r}; drop it, pass replace=True, or give another name")
    handle = base.handle()
    make: Callable[..., object] = handle.create_index if request.is_vector else handle.create_scalar_index
    with lance_errors(f"creating the index {name!r}"):
        make(request.column, request.index_type, name=name, replace=replace, **request.options)
    _follow(newest_base, name)
    made = newest_base()
    let_survive(made)
    return next(index for index in list_indexes(made) if index.name == name)


def drop_index(newest_base: Callable[[], BaseTable], name: str) -> None:
    """Take an index away from the base table, and from what fresh tiers mirror."""
    base = newest_base()
    names = index_names(base)
    if check_text("name", name) not in names:
        raise InvalidInputError(f"the table has no index {name!r}; its indexes: {', '.join(sorted(names)) or 'none'}")
    details = base.need_details()
    if not details.maintain_all_indexes and name in details.maintained_indexes:
        choose_maintained(newest_base, [other for other in maintained_names(base) if other != name])
    with lance_errors(f"dropping the index {name!r}"):
        newest_base().handle().drop_index(name)
    let_survive(with_names(newest_base()))


def _follow(newest_base: Callable[[], BaseTable], name: str) -> None:
    """Let the table maintain the index, if it can be mirrored."""
    base = newest_base()
    if base.need_details().maintain_all_indexes:
        with_names(base)
    elif name in mirrored_specs(base) and name not in maintained_names(base):
        choose_maintained(newest_base, [*maintained_names(base), name])


def list_indexes(base: BaseTable) -> list[IndexInfo]:
    """The indexes of the base table, by name."""
    maintained = frozenset(maintained_names(base))
    with base.reading("listing the indexes of the base table"):
        described = base.handle().describe_indices()
    found = [
        IndexInfo(
            index.name,
            index.index_type,
            tuple(index.field_names),
            int(index.num_rows_indexed),
            index.name in maintained,
        )
        for index in described
        if index.name != INDEX_NAME
    ]
    return sorted(found, key=lambda index: index.name)
