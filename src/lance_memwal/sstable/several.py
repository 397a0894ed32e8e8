"""Which of several SSTables has the newest row of a key.

Owns `find_newest`. Invariant: a key is looked for from the newest SSTable on, and no further than to the first that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.clock import in_order
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.sidecar import WantedKeys

Offsets = npt.NDArray[np.int64]
_ASK_AT_ONCE = 16  # filters, where each waits for a network


def find_newest(
    readers: Sequence[SsTableReader], columns: Sequence[pa.Array]
) -> Iterator[tuple[SsTableReader, npt.NDArray[np.int64], Offsets]]:
    """Where the newest row of each key is, over the SSTables of one shard, which ascend.

    An SSTable, which of the keys it decides, and the offsets of their rows there; keys that are nowhere are in no answer.
    """
    keys = WantedKeys.of(columns)
    left = np.arange(len(keys.values))
    newest_first = list(reversed(readers))
    at_once = readers[0].location.at_once(_ASK_AT_ONCE)
    answers = in_order(lambda reader: reader.might_contain(keys), newest_first, at_once, "memwal-open")
    for reader, maybe in zip(newest_first, answers, strict=True):
        reader.asked_keys += len(left)
        rows = left[maybe[left]]
        offsets = reader.locate(keys.take(rows)) if len(rows) else rows
        if (offsets >= 0).any():
            yield reader, rows[offsets >= 0], offsets[offsets >= 0]
            left = np.setdiff1d(left, rows[offsets >= 0])
            if not len(left):
                return
