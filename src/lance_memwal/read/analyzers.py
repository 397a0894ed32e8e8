"""Which analyzer the texts of a column have.

Owns `text_analyzers`: that of the base table's index on the column; of the newest memtable's, where there is no base table;
Lance's default one, where there is no index. Invariants:

1. All tiers are searched with one analyzer per column.
2. An analyzer that is not to be had here (a code analyzer, one whose dictionaries are elsewhere) is known as such: its index
   answers, for the base table alone. An index of which the elements of lists are the documents is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.manifest import IndexEntry
from lance_memwal.memtable.index import Analyzer, AnalyzerOptions, FtsIndex, FtsMemIndex, MemIndex, analyzer_for
from lance_memwal.read.tiers import Tiers
from lance_memwal.sstable.mirrors import index_facts, is_text_index

_BY_ROW = "row"


@dataclass(frozen=True, slots=True)
class TextAnalyzers:
    """The analyzers by indexed column; why those of some are `only_in_base`; why some columns are `refused`."""

    found: Mapping[str, Analyzer]
    only_in_base: Mapping[str, str]
    refused: Mapping[str, InvalidInputError]

    @property
    def names(self) -> list[str]:
        """The columns that have a text index."""
        return [*self.found, *self.only_in_base]

    def of(self, column: str) -> Analyzer:
        """The analyzer of a column, or `InvalidInputError`."""
        if column in self.found:
            return self.found[column]
        if column in self.refused:
            raise self.refused[column]
        if column in self.only_in_base:
            raise InvalidInputError(f"column {column!r} can only be searched alone: {self.only_in_base[column]}")
        return analyzer_for(AnalyzerOptions())


def memory_indexes(snapshot: Tiers) -> list[MemIndex]:
    """The indexes of the memtables, newest first."""
    return [index for view in snapshot.shards for ref in reversed(view.memory) for index in ref.indexes]


def is_over_rows(base: BaseTable, entry: IndexEntry) -> bool:
    """Whether an index is a text index of which every row is a document."""
    if not is_text_index(entry):
        return False
    return (index_facts(base, entry).params or {}).get("document_granularity") in (None, _BY_ROW)


def text_analyzers(snapshot: Tiers) -> TextAnalyzers:
    """The analyzers of all text columns that have an index."""
    if snapshot.base_table is None:
        texts = [index for index in reversed(memory_indexes(snapshot)) if isinstance(index, FtsMemIndex)]
        return TextAnalyzers({index.column: index.analyzer for index in texts}, {}, {})
    found: dict[str, Analyzer] = {}
    only_in_base: dict[str, str] = {}
    refused: dict[str, InvalidInputError] = {}
    by_id = {number: name for name, number in snapshot.base.column_ids.items()}
    for entry in snapshot.base.index_entries:
        if len(entry.field_ids) != 1 or not is_text_index(entry) or entry.field_ids[0] not in by_id:
            continue
        column = by_id[entry.field_ids[0]]
        params = index_facts(snapshot.base, entry).params or {}
        if not is_over_rows(snapshot.base, entry):
            refused[column] = InvalidInputError(
                f"the documents of the text index on {column!r} are the elements of its lists, which is not searched here: "
                "use Lance (table.dataset), after compaction, or an index over whole rows"
            )
            continue
        try:
            found[column] = analyzer_for(FtsIndex.from_lance(column, params).analyzer_options())
        except InvalidInputError as error:
            only_in_base[column] = str(error)
    known = {column: why for column, why in only_in_base.items() if column not in found}
    return TextAnalyzers(found, known, {column: why for column, why in refused.items() if column not in found})
