"""The version of the base table that belongs to a moment.

Owns `newest_fitting`. Versions of the base table hold more generations the newer they are, and what others wrote with plain
Lance. So the one of a moment is the newest that has nothing of after it, and only the version after that one can say that
there is no newer one. Invariant: a version whose successor was removed is never taken for then: the one that is gone may have
been of then, too, and may have had other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lance_memwal.errors import CollectedError
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import Location

__all__ = ["newest_fitting"]

_T = TypeVar("_T")


def newest_fitting(
    location: Location, versions: Sequence[int], fit: Callable[[BaseTable], _T | None], *, too_new: int | None = None
) -> _T | None:
    """What `fit` makes of the first of these versions, newest first, that is not too new for it; None if all of them are.

    `too_new` is the oldest version that is known to be so already. `CollectedError` if the one after it is gone.
    """
    newest = versions[0] if too_new is None and versions else (too_new or 0) - 1  # the newest that may be the one
    for version in versions:
        base = BaseTable.find(location, version)
        found = None if base is None else fit(base)
        if found is not None and version == newest:
            return found
        if found is not None:
            raise CollectedError(
                "the version that the base table had then is gone: ask for a later moment, and create checkpoints of what is "
                "asked for again"
            )
        if base is not None:
            newest = version - 1
    return None
