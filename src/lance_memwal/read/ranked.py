"""Ranked rows of several sources, merged into one answer.

Owns `Ranked` and the fusion of two rankings. Invariants:

1. A row is known by its source and position, so the same row in two rankings of one snapshot is recognised.
2. The answer is ordered; equal scores keep the order of sources and positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.rows.dictionaries import take_rows
from lance_memwal.rows.normal_form import no_rows

_FUSION_CONSTANT = 60


class _Takes(Protocol):
    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class Ranked:
    """Rows in order, best first: their source, position and score (a distance, BM25 or relevance)."""

    sources: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    scores: npt.NDArray[Any]

    @classmethod
    def merge(
        cls, parts: Sequence[tuple[int, npt.NDArray[np.int64], npt.NDArray[Any]]], k: int, *, ascending: bool
    ) -> Ranked:
        """The best `k` over per-source (number, positions, scores)."""
        if not parts:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
        sources = np.concatenate([np.full(len(p), number, dtype=np.int64) for number, p, _ in parts])
        positions = np.concatenate([p for _, p, _ in parts])
        scores = np.concatenate([s for _, _, s in parts])
        order = np.lexsort((positions, sources, scores if ascending else -scores))[:k]
        return cls(sources[order], positions[order], scores[order])

    def distinct(self, k: int) -> Ranked:
        """The first `k` different rows, each where it is ranked best."""
        _, first = np.unique(np.stack([self.sources, self.positions]), axis=1, return_index=True)
        kept = np.sort(first)[:k]
        return Ranked(self.sources[kept], self.positions[kept], self.scores[kept])

    def after(self, offset: int) -> Ranked:
        """What is left without the first `offset` rows."""
        return Ranked(self.sources[offset:], self.positions[offset:], self.scores[offset:])

    def __len__(self) -> int:
        return len(self.positions)


def fuse(rankings: Sequence[Ranked], k: int) -> Ranked:
    """Reciprocal rank fusion: a row's relevance is the sum of 1 / (60 + rank) over the rankings that have it."""
    relevance: dict[tuple[int, int], float] = {}
    for ranking in rankings:
        for rank, row in enumerate(zip(ranking.sources.tolist(), ranking.positions.tolist(), strict=True), 1):
            relevance[row] = relevance.get(row, 0.0) + 1.0 / (_FUSION_CONSTANT + rank)
    best = sorted(relevance.items(), key=lambda item: (-item[1], item[0]))[:k]
    rows = np.array([row for row, _ in best], dtype=np.int64).reshape(-1, 2)
    return Ranked(rows[:, 0], rows[:, 1], np.array([score for _, score in best], dtype=np.float32))


def to_table(
    ranked: Ranked, sources: Sequence[_Takes], columns: Sequence[str], schema: pa.Schema, score: str
) -> pa.Table:
    """The rows in order with `columns` and their score."""
    answer = pa.schema([schema.field(name) for name in columns])
    parts: list[pa.Table] = []
    places: list[npt.NDArray[np.int64]] = []
    for number in np.unique(ranked.sources).tolist():
        mine = np.flatnonzero(ranked.sources == number)
        taken = sources[number].take(ranked.positions[mine], columns)
        parts.append(pa.Table.from_arrays(taken.columns, schema=answer))
        places.append(mine)
    if not parts:
        return no_rows(answer.append(pa.field(score, pa.float32())))
    scores = pa.array(ranked.scores.astype(np.float32))
    if not columns:
        return pa.table([scores], names=[score])
    table = take_rows(pa.concat_tables(parts), np.argsort(np.concatenate(places), kind="stable"))
    return table.append_column(pa.field(score, pa.float32()), scores)
