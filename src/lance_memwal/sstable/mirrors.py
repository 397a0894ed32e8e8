"""Which indexes of the base table the memtables and SSTables of a writer mirror, and how.

Owns `IndexSet`, the reading of base indexes (`index_facts`, `spec_of`) and the building of mirrors. Invariants:

1. "All" means every base index that can be mirrored, looked up anew for each memtable; the others are left out. In a list,
   an index that cannot be mirrored is an `InvalidInputError`, raised before a claim. A listed index that was dropped since
   is left out with a warning: a table must not become unwritable because of an index.
2. A mirror has the base index's name, and its analyzer or metric; a vector mirror is one partition around the origin, which
   needs no training, so that rows without any vector (deletes, nulls) have one too. Up to `_EXACT_ROWS` rows it compares
   them all: a graph leaves a row out now and then (one of some thousands), and nobody else would find that row.
3. Mirrors are built by Lance on the finished dataset of a generation, before it is published. A mirror that cannot be built
   fails the flush, which is tried again; at the third attempt of a generation it is left out with a warning: reads are
   exact without it, and rows that cannot be flushed are worse than rows without an index.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np

from lance_memwal.clock import in_order
from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.details import INDEX_NAME
from lance_memwal.lance.manifest import IndexEntry
from lance_memwal.lance.vector_metric import is_compressed, vector_metric
from lance_memwal.memtable.index import METRICS, BTreeIndex, FtsIndex, HnswIndex, IndexSpec, MemIndex, Metric
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.schema import TableSchema

_LOG = logging.getLogger(__name__)
_TEXT = "Inverted"
_BUILD_AT_ONCE = 2
_ATTEMPTS_WITH_ALL = 2
_EXACT_ROWS = 10_000
_MIRROR_EF = 64  # what a mirror proposes is ranked anew by its vectors; more would only make closing slower


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What a mirror of a base index must agree with it in, and whether it ranks vectors by something shorter than they are."""

    kind: str
    metric: str | None = None
    params: dict[str, Any] | None = None
    compressed: bool = False


def index_facts(base: BaseTable, entry: IndexEntry) -> IndexFacts:
    """Type, metric and analyzer of a base index; read once, since an index of one id never changes."""
    return CACHE.fact(("base index", entry.uuid), lambda: _read_facts(base, entry))


def is_text_index(entry: IndexEntry) -> bool:
    """Whether an index is an inverted one; nothing is read for it."""
    return _kind_of(entry) == _TEXT


def _kind_of(entry: IndexEntry) -> str:
    """The name that Lance gives to a type of index: BTree, Inverted, Vector, ..."""
    return entry.details_type.rpartition(".")[2].removesuffix("Details").removesuffix("Index")


def _read_facts(base: BaseTable, entry: IndexEntry) -> IndexFacts:
    kind = _kind_of(entry)
    with base.reading(f"reading the index {entry.name!r}"):
        if kind == "Vector":
            metric, compressed = vector_metric(base.dataset, entry.name), is_compressed(base.dataset, entry.name)
            return IndexFacts(kind, metric=metric, compressed=compressed)
        if kind == _TEXT:
            return IndexFacts(kind, params=_text_params(base, entry.name))
    return IndexFacts(kind)


def _text_params(base: BaseTable, name: str) -> dict[str, Any]:
    """The analyzer of a text index, and what its documents are.

    The statistics have no analyzer for a segment made over no rows. The description has no custom stop words.
    """
    indexes = [index for index in base.dataset.describe_indices() if index.name == name]
    described = {key: value for index in indexes for key, value in index.details.items()}
    segments = base.dataset.stats.index_stats(name)["segments"]
    params: dict[str, Any] = next((segment["params"] for segment in segments if segment), described)
    return params | {key: value for key, value in described.items() if key == "document_granularity"}


def spec_of(base: BaseTable, entry: IndexEntry, schema: TableSchema) -> IndexSpec:
    """The mirror of a base index for rows of `schema`, or `InvalidInputError` if there is none."""
    column = _column_of(base, entry, schema)
    facts = index_facts(base, entry)
    spec: IndexSpec
    if facts.kind == "BTree":
        spec = BTreeIndex(column, entry.name)
    elif facts.kind == _TEXT:
        spec = FtsIndex.from_lance(column, facts.params or {}, entry.name)
    elif facts.kind == "Vector":
        spec = HnswIndex(column, entry.name, metric=_metric(facts, entry), ef_construction=_MIRROR_EF)
    else:
        raise InvalidInputError(
            f"index {entry.name!r} is of type {facts.kind or 'unknown'}, which has no mirror in memory"
        )
    spec.validate(schema.nullable)
    return spec


def _column_of(base: BaseTable, entry: IndexEntry, schema: TableSchema) -> str:
    if len(entry.field_ids) != 1:
        raise InvalidInputError(f"index {entry.name!r} is over {len(entry.field_ids)} columns, not one")
    if schema.field_ids is None:
        by_id = {number: name for name, number in base.column_ids.items()}
    else:
        by_id = {ids.id: name for ids, name in zip(schema.field_ids, schema.columns.names, strict=True)}
    column = by_id.get(entry.field_ids[0])
    if column is None:
        raise InvalidInputError(f"index {entry.name!r} is over a nested column, or one that these rows lack")
    return column


def _metric(facts: IndexFacts, entry: IndexEntry) -> Metric:
    for metric in METRICS:
        if facts.metric == metric:
            return metric
    raise InvalidInputError(f"index {entry.name!r} has the metric {facts.metric}, which has no mirror in memory")


def _entries(base: BaseTable) -> dict[str, IndexEntry]:
    """The user's indexes by name; one that grew by segments has several entries, which agree."""
    return {entry.name: entry for entry in reversed(base.index_entries) if entry.name != INDEX_NAME}


def check_maintained(base: BaseTable, names: Sequence[str]) -> None:
    """Return only if every named index of the table exists and can be mirrored."""
    entries = _entries(base)
    schema = base.columns if names else None
    for name in names:
        if name not in entries or schema is None:
            listed = ", ".join(sorted(entries)) or "none"
            raise InvalidInputError(f"the table has no index {name!r}; its indexes: {listed}")
        spec_of(base, entries[name], schema)


def mirrored_specs(base: BaseTable) -> dict[str, IndexSpec]:
    """The mirrors of all indexes of the table that can have one, by name: what "all" means for this version."""
    found = {}
    for name, entry in sorted(_entries(base).items()):
        try:
            found[name] = spec_of(base, entry, base.columns)
        except InvalidInputError:
            continue
    return found


def index_names(base: BaseTable) -> frozenset[str]:
    """The names of the user's indexes of the table."""
    return frozenset(_entries(base))


class IndexSet:
    """The indexes that memtables and SSTables of one writer have, for rows of one schema."""

    def __init__(self, schema: TableSchema, base: BaseTable | None = None, given: Sequence[IndexSpec] = ()) -> None:
        """`given` are the user's own, beside those of the base table; `InvalidInputError` if one cannot be had."""
        for spec in given:
            if not isinstance(spec, BTreeIndex | FtsIndex | HnswIndex):
                raise InvalidInputError(f"an index is a BTreeIndex, FtsIndex or HnswIndex, not {type(spec).__name__}")
            spec.validate(schema.nullable)
        names = [spec.index_name for spec in given]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInputError(
                    f"two of the given indexes have the same name {name!r}; give one a name of its own"
                )
        self._schema = schema
        self._base = base
        self.given = tuple(given)
        self._failures: dict[int, int] = {}
        self._specs = self._resolve(strict=True)

    @property
    def specs(self) -> tuple[IndexSpec, ...]:
        """What a new memtable gets, as of the last look at the base table."""
        return self._specs

    def refresh(self) -> bool:
        """Look at the newest base version; True if the set changed. On a storage failure the set stays as it is."""
        if self._base is None:
            return False
        try:
            newest = self._base.refresh()
            if newest is self._base or newest.details is None:
                return False
            before, self._base = self._specs, newest
            self._specs = self._resolve(strict=False)
        except MemWalError as error:
            _LOG.warning("the maintained indexes could not be looked up, the known ones stay: %s", error)
            return False
        return self._specs != before

    def build(self, known: Sequence[MemIndex] = ()) -> list[MemIndex]:
        """An index per spec: the one of `known` that was made from it, else a new, empty one."""
        kept = {index.made_from: index for index in known}
        return [kept[spec] if spec in kept else spec.build(self._schema.nullable) for spec in self._specs]

    def _resolve(self, *, strict: bool) -> tuple[IndexSpec, ...]:
        found = {spec.index_name: spec for spec in self._of_base(strict=strict)}
        found.update({spec.index_name: spec for spec in self.given})
        return tuple(found.values())

    def _of_base(self, *, strict: bool) -> list[IndexSpec]:
        details = None if self._base is None else self._base.details
        if self._base is None or details is None:
            return []
        entries = _entries(self._base)
        listed = [] if details.maintain_all_indexes else list(details.maintained_indexes)
        specs = []
        for name in entries if details.maintain_all_indexes else listed:
            if name not in entries:
                _LOG.warning("the maintained index %r is not in the table any more; it is left out", name)
                continue
            try:
                specs.append(spec_of(self._base, entries[name], self._schema))
            except InvalidInputError as error:
                if strict and listed:
                    raise
                _LOG.info("index %r is not mirrored: %s", name, error)
        return specs

    # ------------------------------------------------------------------------------------------------------- mirrors

    def mirror(self, generation: int, dataset: lance.LanceDataset) -> None:
        """Build every mirror on the finished dataset of a generation; see invariant 3 for what cannot be built."""
        specs = self._specs
        if not specs:
            return
        failed = self._build_mirrors(specs, dataset)
        if not failed:
            self._failures.pop(generation, None)
            return
        attempts = self._failures[generation] = self._failures.get(generation, 0) + 1
        if attempts <= _ATTEMPTS_WITH_ALL:
            raise failed[0][1]
        for spec, error in failed:
            _LOG.warning("generation %d goes without index %r: %s", generation, spec.index_name, error)

    def _build_mirrors(
        self, specs: Sequence[IndexSpec], dataset: lance.LanceDataset
    ) -> list[tuple[IndexSpec, MemWalError]]:
        failed: list[tuple[IndexSpec, MemWalError]] = []

        def build(spec: IndexSpec) -> None:
            try:
                with lance_errors(f"building the index {spec.index_name!r} of a generation"):
                    self._build_mirror(spec, dataset.checkout_version(dataset.version))
            except MemWalError as error:
                failed.append((spec, error))

        ordered = sorted(specs, key=lambda spec: not isinstance(spec, HnswIndex))  # the longest first
        list(in_order(build, ordered, _BUILD_AT_ONCE, "memwal-mirror"))
        return failed

    def _build_mirror(self, spec: IndexSpec, dataset: lance.LanceDataset) -> None:
        options = spec.lance_options()
        if not isinstance(spec, HnswIndex):
            kind: Any = spec.lance_type
            dataset.create_scalar_index(spec.column, kind, name=spec.index_name, **options)
            return
        column = self._schema.columns.field(spec.column).type
        origin = np.zeros((1, column.list_size), dtype=column.value_type.to_pandas_dtype())
        kind = spec.lance_type
        if dataset.count_rows() <= _EXACT_ROWS:
            kind, options = "IVF_FLAT", {"metric": spec.metric, "num_partitions": 1}
        dataset.create_index(spec.column, kind, name=spec.index_name, ivf_centroids=origin, **options)
