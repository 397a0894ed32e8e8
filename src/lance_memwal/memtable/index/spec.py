"""What an in-memory index should be: public, frozen, checked before a shard is claimed.

Owns `BTreeIndex`, `FtsIndex` and `HnswIndex`. Invariants:

1. `validate` raises InvalidInputError for everything that `build` could not honour, without side effects.
2. A spec never changes; `build` returns a new, empty index for each memtable.
3. `name` defaults to Lance's default name of an index on the column, so that mirrors in SSTables match the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index.analyzer import AnalyzerFields, AnalyzerOptions, analyzer_for, is_text
from lance_memwal.memtable.index.btree import BTreeMemIndex, is_indexable
from lance_memwal.memtable.index.fts import FtsMemIndex
from lance_memwal.memtable.index.hnsw import HnswMemIndex
from lance_memwal.memtable.index.vectors import METRICS, Metric, is_vector

_ANALYZER_FIELDS = tuple(option.name for option in fields(AnalyzerFields))
_CODE_FLAGS = ("split_identifiers", "split_on_numerics", "preserve_original", "index_operators")


def _field(schema: pa.Schema, column: str) -> pa.Field:
    """The one field of this name."""
    found = schema.get_all_field_indices(column)
    if len(found) != 1:
        raise InvalidInputError(
            f"index column {column!r} is not in the schema" if not found else f"{column!r} is twice there"
        )
    return schema.field(found[0])


@dataclass(frozen=True, slots=True)
class BTreeIndex:
    """A scalar index: equality, membership, ranges and nulls of one column."""

    column: str
    name: str | None = None

    @property
    def index_name(self) -> str:
        """The name, given or derived."""
        return self.name or f"{self.column}_idx"

    @property
    def lance_type(self) -> str:
        """The type that Lance's index builder knows it by."""
        return "BTREE"

    def lance_options(self) -> dict[str, Any]:
        """Return the options of Lance's index builder."""
        return {}

    def validate(self, schema: pa.Schema) -> None:
        """Raise InvalidInputError unless the column can have this index."""
        data_type = _field(schema, self.column).type
        if not is_indexable(data_type):
            raise InvalidInputError(f"column {self.column!r} of type {data_type} cannot have a BTree index")

    def build(self, schema: pa.Schema) -> BTreeMemIndex:
        """Return a new, empty index."""
        self.validate(schema)
        index = BTreeMemIndex(self.index_name, self.column, schema.field(self.column).type)
        index.made_from = self
        return index


@dataclass(frozen=True, slots=True)
class FtsIndex(AnalyzerFields):
    """A full-text index with BM25; the analyzer options are those of Lance's inverted index.

    None for `stem` and `remove_stop_words` means Lance's default: on, but off for the ngram tokenizer. In memory,
    positions are always kept; `with_position` says whether the mirror in an SSTable has them.
    """

    column: str
    name: str | None = None
    with_position: bool = field(default=False, kw_only=True)

    @classmethod
    def from_lance(cls, column: str, params: Mapping[str, Any], name: str | None = None) -> FtsIndex:
        """Return the mirror of an inverted index with these `params`, or raise InvalidInputError if there is none.

        `params` are those of `dataset.stats.index_stats(name)["indices"][0]["params"]`; the index description
        leaves the custom stop words out.
        """
        if params.get("lance_tokenizer") not in (None, "text") or params.get("document_granularity", "row") != "row":
            raise InvalidInputError(f"the text index on {column!r} is not over plain text rows")
        if params.get("base_tokenizer") == "code" or any(params.get(flag) for flag in _CODE_FLAGS):
            raise InvalidInputError(
                f"the text index on {column!r} uses the code analyzer, which has no mirror in memory"
            )
        known = {key: params[key] for key in (*_ANALYZER_FIELDS, "with_position") if key in params}
        return cls(column, name, **known)

    @property
    def index_name(self) -> str:
        """The name, given or derived."""
        return self.name or f"{self.column}_idx"

    @property
    def lance_type(self) -> str:
        """The type that Lance's index builder knows it by."""
        return "INVERTED"

    def lance_options(self) -> dict[str, Any]:
        """Return the options of Lance's index builder."""
        return {**self.analyzer_options().lance_options(), "with_position": self.with_position}

    def analyzer_options(self) -> AnalyzerOptions:
        """Return the options that decide the terms."""
        return AnalyzerOptions(**{name: getattr(self, name) for name in _ANALYZER_FIELDS})

    def validate(self, schema: pa.Schema) -> None:
        """Raise InvalidInputError unless the column can have this index and Lance knows the analyzer."""
        data_type = _field(schema, self.column).type
        if not is_text(data_type):
            raise InvalidInputError(f"column {self.column!r} of type {data_type} cannot have a full-text index")
        self.analyzer_options().validate()

    def build(self, schema: pa.Schema) -> FtsMemIndex:
        """Return a new, empty index; indexes with equal options share one analyzer."""
        self.validate(schema)
        index = FtsMemIndex(self.index_name, self.column, analyzer_for(self.analyzer_options()))
        index.made_from = self
        return index


@dataclass(frozen=True, slots=True)
class HnswIndex:
    """A vector index: an HNSW graph with `m` links per node, found with `ef_construction` candidates."""

    column: str
    name: str | None = None
    metric: Metric = "l2"
    m: int = 16
    ef_construction: int = 100

    @property
    def index_name(self) -> str:
        """The name, given or derived."""
        return self.name or f"{self.column}_idx"

    @property
    def lance_type(self) -> str:
        """The type that Lance's index builder knows it by."""
        return "IVF_HNSW_SQ"

    def lance_options(self) -> dict[str, Any]:
        """Return the options of Lance's index builder: one partition, whose centroid the builder is given."""
        return {"metric": self.metric, "num_partitions": 1, "m": self.m, "ef_construction": self.ef_construction}

    def validate(self, schema: pa.Schema) -> None:
        """Raise InvalidInputError unless the column can have this index."""
        data_type = _field(schema, self.column).type
        if not is_vector(data_type):
            raise InvalidInputError(f"column {self.column!r} of type {data_type} cannot have a vector index")
        if self.metric not in METRICS:
            raise InvalidInputError(f"metric must be one of {', '.join(METRICS)}, not {self.metric!r}")
        if not 2 <= self.m <= 256 or not 1 <= self.ef_construction <= 10_000:
            raise InvalidInputError("m must be within 2 and 256, ef_construction within 1 and 10000")

    def build(self, schema: pa.Schema) -> HnswMemIndex:
        """Return a new, empty index."""
        self.validate(schema)
        index = HnswMemIndex(
            self.index_name,
            self.column,
            schema.field(self.column).type,
            metric=self.metric,
            m=self.m,
            ef_construction=self.ef_construction,
        )
        index.made_from = self
        return index


IndexSpec = BTreeIndex | FtsIndex | HnswIndex
