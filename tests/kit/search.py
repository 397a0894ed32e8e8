"""A table spread over all tiers, with a plain dictionary of its live rows as the oracle."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.memtable.index import CorpusStats, FtsIndex, FtsMemIndex, TextQuery, terms_of

_NOUNS = "amber basalt cedar delta ember fjord grove heron iris juniper kelp lichen maple nectar otter pine quartz"
WORDS = tuple(_NOUNS.split(" "))
SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Row:
    id: int
    vector: npt.NDArray[Any] | None
    text: str | None
    tag: int


def schema_of(dim: int, value_type: pa.DataType | None = None) -> pa.Schema:
    kind = pa.list_(value_type or pa.float32(), dim)
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("v", kind), pa.field("t", pa.string())]
    return pa.schema([*fields, pa.field("tag", pa.int64())])


def to_table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    kind = schema.field("v").type
    dtype = kind.value_type.to_pandas_dtype()
    vectors = [np.zeros(kind.list_size, dtype) if row.vector is None else row.vector.astype(dtype) for row in rows]
    values = pa.array(np.concatenate(vectors) if vectors else np.empty(0, dtype), type=kind.value_type)
    mask = pa.array([row.vector is None for row in rows], pa.bool_())
    v = pa.FixedSizeListArray.from_arrays(values, kind.list_size, mask=mask)
    columns = [[row.id for row in rows], v, [row.text for row in rows], [row.tag for row in rows]]
    arrays = [c if isinstance(c, pa.Array) else pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


class Clusters:
    """Vectors around a few centres, texts of a few words."""

    def __init__(self, seed: int, dim: int, centres: int = 40, spread: float = 0.35) -> None:
        self.rng = np.random.default_rng(seed)
        self.dim = dim
        self._spread = spread
        self._centres = self.rng.standard_normal((centres, dim))

    def vector(self) -> npt.NDArray[np.float32]:
        centre = self._centres[self.rng.integers(len(self._centres))]
        return (centre + self._spread * self.rng.standard_normal(self.dim)).astype(np.float32)

    def text(self) -> str:
        return " ".join(self.rng.choice(WORDS, self.rng.integers(1, 9)))

    def row(self, key: int, *, nulls: float = 0.0) -> Row:
        vector = None if self.rng.random() < nulls else self.vector()
        text = None if self.rng.random() < nulls else self.text()
        return Row(key, vector, text, int(self.rng.integers(10)))


@dataclass
class Spread:
    """A table with rows in every tier, and what is live in it."""

    table: mw.Table
    writer: mw.ShardWriter
    make: Clusters
    schema: pa.Schema
    nulls: float = 0.0
    live: dict[int, Row] = field(default_factory=dict)
    indexed: list[str | None] = field(default_factory=list)
    """The texts in the text index of the base table."""

    def put(self, keys: Any) -> None:
        """Insert or replace the rows of these keys, with new values."""
        rows = [self.make.row(int(key), nulls=self.nulls) for key in keys]
        self.writer.put(to_table(rows, self.schema))
        self.live.update({row.id: row for row in rows})

    def delete(self, keys: Any) -> None:
        self.writer.delete([int(key) for key in keys])
        for key in keys:
            self.live.pop(int(key), None)

    def flush(self) -> None:
        self.writer.force_seal_active()
        self.writer.wait_for_flush_drain(100)

    def change(self, first: int, count: int) -> None:
        """New rows, updates and deletes in every tier below."""
        self.put(range(first, first + count))
        known = np.array(sorted(self.live))
        self.put(self.make.rng.choice(known, max(1, len(known) // 8), replace=False))
        self.delete(self.make.rng.choice(np.array(sorted(self.live)), max(1, len(known) // 16), replace=False))

    def append_to_base(self, keys: Any) -> None:
        """Rows in base fragments that no index covers."""
        rows = [self.make.row(int(key), nulls=self.nulls) for key in keys]
        lance.write_dataset(to_table(rows, self.table.schema), self.table.dataset.uri, mode="append")
        self.live.update({row.id: row for row in rows})

    def matching(self, tag: int | None) -> list[Row]:
        return [row for row in self.live.values() if tag is None or row.tag == tag]

    def exact(self, query: npt.NDArray[Any], k: int, metric: str = "l2", tag: int | None = None) -> list[int]:
        """The ids of the nearest live rows, by definition."""
        rows = [row for row in self.matching(tag) if row.vector is not None]
        found = distances(np.stack([row.vector for row in rows]), query, metric)  # type: ignore[arg-type]
        return [rows[i].id for i in np.argsort(found, kind="stable")[:k]]


def distances(vectors: npt.NDArray[Any], query: npt.NDArray[Any], metric: str) -> npt.NDArray[np.float64]:
    """Distances as Lance defines them."""
    wide, q = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        return np.asarray(((wide - q) ** 2).sum(axis=1))
    products = wide @ q
    return np.asarray(
        1 - (products if metric == "dot" else products / np.linalg.norm(wide, axis=1) / np.linalg.norm(q))
    )


def spread(
    path: Path,
    *,
    rows: int = 400,
    dim: int = 8,
    seed: int = 1,
    metric: str | None = "l2",
    text_options: dict[str, Any] | None = None,
    nulls: float = 0.0,
    value_type: pa.DataType | None = None,
    index: dict[str, Any] | None = None,
    **settings: Any,
) -> Spread:
    """A table with indexed and unindexed base fragments, two SSTables and a memtable; updates and deletes all over.

    `metric=None` and `text_options=None` leave the vector and the text index out.
    """
    make = Clusters(seed, dim)
    schema = schema_of(dim, value_type)
    first = [make.row(key, nulls=nulls) for key in range(rows // 2)]
    table = mw.create_table(str(path / f"table{next(_names)}"), to_table(first, schema), primary_key="id")
    dataset = table.dataset
    dataset.create_scalar_index("id", "BTREE", name="id_btree")
    if text_options is not None:
        dataset.create_scalar_index("t", "INVERTED", name="t_fts", **text_options)
    if metric is not None:
        options = {"index_type": "IVF_FLAT", "num_partitions": 2, **(index or {})}
        dataset.create_index("v", name="v_ann", metric=metric, **options)
    made = Spread(table, table.shard_writer(**{**SETTINGS, **settings}), make, schema, nulls)
    made.live.update({row.id: row for row in first})
    made.indexed += [row.text for row in first] if text_options is not None else []
    made.append_to_base(range(rows // 2, rows // 2 + rows // 10))
    for number in range(2):
        made.change(1_000_000 * (number + 1), rows // 8)
        made.flush()
    made.change(5_000_000, rows // 8)
    return made


def ids(found: pa.Table) -> list[int]:
    return [int(key) for key in found.column("id").to_pylist()]


# The expected answer of a text search: BM25 over the live rows, with the statistics of the base table's text index.

_SCHEMA = pa.schema([pa.field("t", pa.string())])


def scores_of(
    query: str | TextQuery, live: Mapping[int, str | None], indexed: Sequence[str | None], options: Mapping[str, Any]
) -> dict[int, float]:
    """The score of every live row that matches. The index with these `options` was made over the `indexed` texts."""
    analyzer = FtsIndex("t", **options).build(_SCHEMA).analyzer
    rows, base = (FtsMemIndex.of_texts("t", pa.array(t, pa.string()), analyzer) for t in (list(live.values()), indexed))
    bound = rows.bind(query, len(live))
    terms = terms_of(bound)["t"]
    stats = rows.stats(terms, len(live))
    if indexed:
        known = base.stats(terms, len(indexed))
        frequencies = {term: known.doc_freq[term] or stats.doc_freq[term] for term in terms}
        stats = CorpusStats(known.doc_count, known.total_tokens, frequencies)
    keys = list(live)
    positions, scores = rows.search(bound, len(live), None, stats=stats)
    return {keys[position]: score for position, score in zip(positions.tolist(), scores.tolist(), strict=True)}
