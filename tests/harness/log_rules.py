"""What the entries of a shard's log must be like, one after the other: the epochs of the protocol.

Owns `epoch_faults` (I9). A claimer that slept between its claim and its sentinel may place that sentinel above the one of its
successor: the second look at the manifest stops it before it writes a row, and a sentinel is no row. So epochs may fall from
one entry to the next, and those of rows may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lance_memwal.types import WalEntry

__all__ = ["epoch_faults"]


def epoch_faults(entries: Iterable[WalEntry]) -> Iterator[str]:
    """What is wrong with the epochs of these entries, which come in the order of their positions.

    An epoch has at most one sentinel. Its rows lie above that sentinel (the first epoch needs none) and below that of any higher
    epoch.
    """
    epoch = 1
    sentinels: set[int] = set()
    for entry in entries:
        where = f"position {entry.position}: epoch {entry.writer_epoch}"
        if entry.is_sentinel:
            if entry.writer_epoch in sentinels:
                yield f"{where} has a second sentinel"
            sentinels.add(entry.writer_epoch)
        else:
            if entry.writer_epoch < epoch:
                yield f"{where} wrote above epoch {epoch}"
            if entry.writer_epoch > 1 and entry.writer_epoch not in sentinels:
                yield f"{where} wrote before its sentinel"
        epoch = max(epoch, entry.writer_epoch)
