"""The highest sequence that a shard knows: a row that is not below it cannot be late.

Owns `HighestSequence`. Invariants:

1. What is inserted is noted under the lock of the writer, from the moment in which the shard was opened; all else was on
   storage or in memory before, and is looked up once, when it is first needed.
2. It never falls. It may be higher than any row that is left: then a row is looked up for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.merging import order_of

_FEW = 256


class Span(NamedTuple):
    """The lowest and the highest sequence of some rows, and whether they come in ascending order."""

    lowest: Any
    highest: Any
    ascends: bool


def span_of(batches: Sequence[pa.RecordBatch], sequence: str) -> Span:
    """The span of rows, one at least; `InvalidInputError` if one has no sequence."""
    if len(batches) == 1:
        return _span(batches[0], sequence)
    spans = [_span(batch, sequence) for batch in batches]
    ascends = all(span.ascends for span in spans)
    ascends = ascends and all(one.highest <= later.lowest for one, later in pairwise(spans))
    return Span(min(span.lowest for span in spans), max(span.highest for span in spans), ascends)


def _span(batch: pa.RecordBatch, sequence: str) -> Span:
    values, valid = order_of(batch.column(sequence))
    if valid is not None or (values.dtype.kind == "f" and np.isnan(values).any()):
        raise InvalidInputError(
            f"column {sequence!r} is the sequence of the table: it must not be null, nor not a number"
        )
    if len(values) <= _FEW:  # a sort of what is sorted is one call, where numpy needs many
        listed = values.tolist()
        ordered = sorted(listed)
        return Span(ordered[0], ordered[-1], listed == ordered)
    if (values[1:] >= values[:-1]).all():
        return Span(values[0].item(), values[-1].item(), True)
    return Span(values.min().item(), values.max().item(), False)


class HighestSequence:
    """The highest sequence of one shard and its base table."""

    __slots__ = ("_before", "_is_known", "_noted")

    def __init__(self) -> None:
        self._noted: Any = None
        self._before: Any = None
        self._is_known = False

    def know(self, find: Callable[[], Any]) -> None:
        """Find out what was there before, unless that is known; the lock is not held."""
        if not self._is_known:
            found = find()
            self._before = None if found is None else found.item()
            self._is_known = True

    def is_late(self, lowest: Any) -> bool:
        """Whether a row with this sequence may be late."""
        if not self._is_known:
            return True
        noted, before = self._noted, self._before
        return (noted is not None and lowest < noted) or (before is not None and lowest < before)

    def note(self, highest: Any) -> None:
        """Note what is inserted now; the lock of the writer is held."""
        if self._noted is None or highest > self._noted:
            self._noted = highest
