"""How a pass over rows of the base table tells which of them a fresh tier hides.

Owns `HiddenByKey` and `HiddenById`. Both say which columns they need, and whether row ids. Invariant: they hide the same rows.
To compare keys costs a look at every key of the base table, which is dear where they are bytes; row ids that are known are
looked for among those of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.read.base_rows import row_ids_of
from lance_memwal.read.superseded_rows import Learning, SupersededRows
from lance_memwal.rows.keys import KeySet
from lance_memwal.types import ROW_ID

_Mask = npt.NDArray[np.bool_]


class HiddenRows(Protocol):
    """One way to tell."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that it looks at."""

    @property
    def needs_row_id(self) -> bool:
        """Whether it looks at row ids."""

    def live(self, rows: pa.RecordBatch) -> _Mask:
        """Per row: whether no fresh tier hides it."""

    def finish(self) -> None:
        """All rows of the base table were asked for."""


class HiddenByKey:
    """By the keys of fresh tiers; `learning`, if there is one, is told what is found."""

    def __init__(self, keys: KeySet, columns: Sequence[str], learning: Learning | None) -> None:
        self.columns = columns
        self.needs_row_id = learning is not None
        self._keys = keys
        self._learning = learning

    def live(self, rows: pa.RecordBatch) -> _Mask:
        """Per row: whether no fresh tier hides it."""
        found = self._keys.of_rows(rows, self.columns)
        if self._learning is not None and found.any():
            self._learning.add(rows.select([*self.columns, ROW_ID]).filter(pa.array(found)))
        return ~found

    def finish(self) -> None:
        """Let what was found be known."""
        if self._learning is not None:
            self._learning.finish()


class HiddenById:
    """By row ids that are known; `others`, if there are any, are hidden by their keys."""

    needs_row_id = True

    def __init__(self, rows: SupersededRows, others: HiddenByKey | None) -> None:
        self.columns: Sequence[str] = () if others is None else others.columns
        self._rows = rows
        self._others = others

    def live(self, rows: pa.RecordBatch) -> _Mask:
        """Per row: whether no fresh tier hides it."""
        live: _Mask = ~self._rows.hides(row_ids_of(rows))
        return live if self._others is None else live & self._others.live(rows)

    def finish(self) -> None:
        """Let what was found by keys be known."""
        if self._others is not None:
            self._others.finish()
