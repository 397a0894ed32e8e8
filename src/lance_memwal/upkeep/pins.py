"""Which versions of the base table somebody still needs.

Owns `pinned_versions`, which whoever removes versions asks. Invariant: the newest version and every version with a tag of
Lance, on whatever branch, are pinned.
"""

from __future__ import annotations

from lance_memwal.lance.base import BaseTable, lance_errors

__all__ = ["pinned_versions"]


def pinned_versions(base: BaseTable) -> frozenset[int]:
    """The versions that must stay; `base` is the newest one."""
    with lance_errors("listing the tags of the base table"):
        tags = base.handle().tags.list()
    return frozenset({base.version, *(int(tag["version"]) for tag in tags.values())})
