"""How the MemWAL details of a live table change, and the sequence that writes of a table without a merge go by.

Owns `change_details` and `note_sequence`. Invariants:

1. The details change by a hand-made version that is pinned to the version that was looked at, and that changes nothing else
   (`lance_memwal.lance.commit.commit_details`). A mark that somebody records meanwhile stays.
2. A table goes by one sequence. It is noted before the first tombstone that carries it: whoever folds such a tombstone
   finds the note (`BaseTable.order`), and writes the delete down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import ConflictError, InvalidInputError, MemWalError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import commit_details, syncs
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.rows.merging import SEQUENCE_KEY, LastWrite, check_merge, encode_merge
from lance_memwal.store.sequenced import attempts


def change_details(
    newest_base: Callable[[], BaseTable], wanted: Callable[[BaseTable], MemWalDetails], clock: Clock = SYSTEM_CLOCK
) -> BaseTable:
    """The newest version once its details are what `wanted` makes of them."""
    for _ in attempts("the base table", clock):
        base = newest_base()
        details = wanted(base)
        if details == base.details:
            return base
        try:
            return commit_details(base, details, clock, fsync=syncs(base))
        except ConflictError:
            continue
        except UnsupportedFormatError:
            raise
        except MemWalError:
            newest = newest_base()
            if wanted(newest) != newest.details:  # else it landed although it failed
                raise
            return newest
    raise AssertionError("the last attempt returns or raises")


def note_sequence(newest_base: Callable[[], BaseTable], column: str, clock: Clock = SYSTEM_CLOCK) -> BaseTable:
    """The version from which on deletes that are compacted are remembered with their value of `column`.

    `InvalidInputError` if rows cannot be put in order by it, or if the table goes by another sequence.
    """

    def noted(base: BaseTable) -> MemWalDetails:
        details, order = base.need_details(), LastWrite(column)
        if base.order is not None and base.order.sequence == column:
            return details
        check_merge(order, base.columns.columns, base.primary_key, base.sharding.column)
        if base.order is not None or base.merge is not None:
            rule = base.merge if base.order is None else f"the sequence {base.order.sequence!r}"
            raise InvalidInputError(f"the table goes by {rule}: its rows cannot be put in the order of {column!r}, too")
        text = encode_merge(order, base.column_ids)
        return replace(details, writer_config_defaults={**details.writer_config_defaults, SEQUENCE_KEY: text})

    return change_details(newest_base, noted, clock)
