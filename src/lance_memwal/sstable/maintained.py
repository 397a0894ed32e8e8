"""Which indexes of the base table a MemWAL index maintains, and how that is changed on a live table.

Owns `maintained_names`, `choose_maintained` and `with_names`. Invariants:

1. Maintained are the listed indexes that exist; with "all", every index that can be mirrored.
2. "All" records names beside the flag: whoever does not know the flag (LanceDB 0.40) goes by the list. The names follow
   the indexes whenever somebody asks for them (`with_names`); our own code goes by the flag.
3. The details of a live table change as `lance_memwal.lance.live_details` does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from lance_memwal.arguments import check_names
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import ConflictError, InvalidInputError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.lance.live_details import change_details
from lance_memwal.memtable.index import HnswIndex, IndexSpec
from lance_memwal.sstable.mirrors import check_maintained, index_names, mirrored_specs

_LOG = logging.getLogger(__name__)


def maintained_names(base: BaseTable) -> tuple[str, ...]:
    """The indexes of the table that its MemWAL index maintains, by name."""
    details = base.details
    if details is None:
        return ()
    if details.maintain_all_indexes:
        return tuple(mirrored_specs(base))
    present = index_names(base)
    return tuple(name for name in details.maintained_indexes if name in present)


def names_of_all(base: BaseTable) -> tuple[str, ...]:
    """The names that "all" records for readers and writers that know the list alone.

    Those of vectors that are not of 32 bits are left out: LanceDB 0.40 opens no writer of a table that lists one (tried).
    """
    return tuple(name for name, spec in mirrored_specs(base).items() if _is_known_to_all(base, spec))


def _is_known_to_all(base: BaseTable, spec: IndexSpec) -> bool:
    kind = base.schema.field(spec.column).type
    return not isinstance(spec, HnswIndex) or bool(kind.value_type == pa.float32())


def named_indexes(choice: str | Sequence[str] | None) -> tuple[str, ...]:
    """The indexes that a choice ("all", a list of names, or None) names one by one."""
    return () if choice is None or isinstance(choice, str) else check_names("maintained_indexes", choice)


def check_choice_of_indexes(choice: str | Sequence[str] | None, indexes: Sequence[str]) -> None:
    """Return only if a table with these indexes can maintain those that are chosen."""
    if isinstance(choice, str) and choice != "all":
        raise InvalidInputError("maintained_indexes is 'all', a list of index names, or None")
    for name in named_indexes(choice):
        if name not in indexes:
            raise InvalidInputError(
                f"the table has no index {name!r}; its indexes: {', '.join(sorted(indexes)) or 'none'}"
            )


def choose_maintained(
    newest_base: Callable[[], BaseTable], choice: str | Sequence[str] | None, clock: Clock = SYSTEM_CLOCK
) -> BaseTable:
    """The version from which on the table maintains the indexes that are chosen: "all", those that are named, or none.

    Writers go by it from their next memtable on.
    """

    def chosen(base: BaseTable) -> MemWalDetails:
        details = base.need_details()
        check_choice_of_indexes(choice, sorted(index_names(base)))
        check_maintained(base, named_indexes(choice))
        is_all = choice == "all"
        names = names_of_all(base) if is_all else named_indexes(choice)
        return replace(details, maintained_indexes=names, maintain_all_indexes=is_all)

    return change_details(newest_base, chosen, clock)


def with_names(base: BaseTable, clock: Clock = SYSTEM_CLOCK) -> BaseTable:
    """`base`, which was just looked at, or a version after it that names the indexes that "all" means now.

    Nothing of ours needs the names: where they cannot be written, that is logged.
    """

    def named(newest: BaseTable) -> MemWalDetails:
        details = newest.need_details()
        return replace(details, maintained_indexes=names_of_all(newest)) if details.maintain_all_indexes else details

    try:
        if base.details is None or named(base) == base.details:
            return base
        return change_details(base.refresh, named, clock)
    except (ConflictError, UnsupportedFormatError) as error:
        _LOG.info("the names of maintained indexes were not recorded [table=%s]: %s", base.location.describe(), error)
        return base
