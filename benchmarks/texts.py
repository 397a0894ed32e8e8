"""Texts as people write them, as far as a search can tell: few words are common, most are rare, lengths differ."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.string())])
_CONSONANTS, _VOWELS = np.array(list("bcdfghklmnprstvz")), np.array(list("aeiou"))


class Texts:
    """Rows and queries over one vocabulary, in which the n-th word is n times as rare as the first."""

    def __init__(self, words: int, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        found: dict[str, None] = {}
        while len(found) < words:
            size = int(rng.integers(2, 5))
            letters = zip(rng.choice(_CONSONANTS, size), rng.choice(_VOWELS, size), strict=True)
            found["".join(a + b for a, b in letters)] = None
        self.words = pa.array(list(found))
        share = np.cumsum(1 / np.arange(1, words + 1))
        self._share = share / share[-1]

    def rows(self, first: int, count: int, seed: int) -> pa.Table:
        """Rows with the ids `first` .. `first + count`."""
        ids = pa.array(np.arange(first, first + count))
        return pa.table([ids, self._texts(count, np.random.default_rng(seed))], schema=SCHEMA)

    def queries(self, count: int, seed: int) -> list[str]:
        """Queries of one to three words, as common as they are in the rows."""
        rng = np.random.default_rng(seed)
        words = self.words.to_pylist()
        chosen = np.searchsorted(self._share, rng.random((count, 3)))
        return [" ".join(words[i] for i in row[: rng.integers(1, 4)]) for row in chosen]

    def _texts(self, rows: int, rng: np.random.Generator) -> pa.Array:
        lengths = np.clip(rng.lognormal(3.0, 0.5, rows), 2, 200).astype(np.int32)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        words = self.words.take(pa.array(np.searchsorted(self._share, rng.random(int(offsets[-1])))))
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), words), pa.scalar(" "))
