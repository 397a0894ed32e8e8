"""In-memory indexes of a memtable: BTree, full text, vectors.

Owns what a memtable answers without scanning. Each index is a pure structure over one column: no I/O, no writer, no
table. `spec` says what an index should be, `port` what every index guarantees.
"""

from lance_memwal.memtable.index.analyzer import Analyzer, AnalyzerOptions, analyzer_for
from lance_memwal.memtable.index.bm25 import BoundQuery, CorpusStats, terms_of
from lance_memwal.memtable.index.btree import BTreeMemIndex
from lance_memwal.memtable.index.fts import FtsMemIndex, bind_over, search_texts
from lance_memwal.memtable.index.hnsw import HnswMemIndex
from lance_memwal.memtable.index.port import MemIndex
from lance_memwal.memtable.index.query import Boolean, Boost, Match, MultiMatch, Phrase, TextQuery, as_query, to_lance
from lance_memwal.memtable.index.spec import BTreeIndex, FtsIndex, HnswIndex, IndexSpec
from lance_memwal.memtable.index.text_view import FtsView
from lance_memwal.memtable.index.vectors import METRICS, SEARCH_METRICS, Metric, exact_search
from lance_memwal.rows.sql import Equals, In, IsNotNull, IsNull, Predicate, Range

__all__ = [
    "METRICS",
    "SEARCH_METRICS",
    "Analyzer",
    "AnalyzerOptions",
    "BTreeIndex",
    "BTreeMemIndex",
    "Boolean",
    "Boost",
    "BoundQuery",
    "CorpusStats",
    "Equals",
    "FtsIndex",
    "FtsMemIndex",
    "FtsView",
    "HnswIndex",
    "HnswMemIndex",
    "In",
    "IndexSpec",
    "IsNotNull",
    "IsNull",
    "Match",
    "MemIndex",
    "Metric",
    "MultiMatch",
    "Phrase",
    "Predicate",
    "Range",
    "TextQuery",
    "analyzer_for",
    "bind_over",
    "exact_search",
    "as_query",
    "search_texts",
    "terms_of",
    "to_lance",
]
