"""In-memory indexes of a memtable: BTree, full text, vectors.

Owns what a memtable answers without scanning. Each index is a pure structure over one column: no I/O, no writer, no
table. `spec` says what an index should be, `port` what every index guarantees.

Called by: memtable, scan, flush.
"""

from memwal.index.analyzer import Analyzer, AnalyzerOptions, analyzer_for
from memwal.index.bm25 import BoundQuery, CorpusStats, terms_of
from memwal.index.btree import BTreeMemIndex
from memwal.index.fts import FtsMemIndex, Vocabulary, bind_over, score_texts, search_texts
from memwal.index.hnsw import HnswMemIndex
from memwal.index.lance_query import as_query, from_lance
from memwal.index.port import MemIndex
from memwal.index.query import Boolean, Boost, Match, MultiMatch, Phrase, TextQuery
from memwal.index.spec import BTreeIndex, FtsIndex, HnswIndex, IndexSpec
from memwal.index.text_view import FtsView
from memwal.index.vectors import METRICS, Metric, exact_search
from memwal.predicate import Equals, In, IsNotNull, IsNull, Predicate, Range

__all__ = [
    "METRICS",
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
    "Vocabulary",
    "analyzer_for",
    "bind_over",
    "exact_search",
    "as_query",
    "from_lance",
    "score_texts",
    "search_texts",
    "terms_of",
]
