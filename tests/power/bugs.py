"""Orders of writes and syncs that an engine may get wrong: each breaks one of them in this process.

Owns `BUGS`, and `ONLY_LANCE`: those that show in a life in which Lance makes the versions of the base table; the rest shows
where we make them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from lance_memwal.lance import commit
from lance_memwal.lance.base import BaseTable

__all__ = ["BUGS", "ONLY_LANCE"]


def _no_sync_of_the_log() -> None:
    from lance_memwal.store import local

    local.LocalStore._link_anonymous = _unsynced(local.LocalStore._link_anonymous)  # type: ignore[method-assign]


def _unsynced(honest: Callable[..., None]) -> Callable[..., None]:
    return lambda self, directory, name, data, _flush: honest(self, directory, name, data, None)


def _no_sync_of_names() -> None:
    from lance_memwal.store import files

    files.Syncer.names = lambda *_: None  # type: ignore[assignment, method-assign]


def _no_sync_of_sstables() -> None:
    from lance_memwal.sstable import write

    honest = write.write_sstable
    target = sys.modules["lance_memwal.sstable.target"]
    target.write_sstable = lambda *given, **named: honest(*given, **{**named, "fsync": False})  # type: ignore[attr-defined]


def _no_sync_before_a_trim() -> None:
    from lance_memwal.compact import trim

    trim.let_survive = lambda _base: None


def _no_sync_of_the_new_table() -> None:
    BaseTable.make_durable = lambda _base: None  # type: ignore[method-assign]


def _no_sync_of_our_versions() -> None:
    honest = commit._put_own

    def put(store: Any, path: str, data: bytes, *, fsync: bool) -> None:
        honest(store, path, data, fsync=fsync and not path.startswith("_versions"))

    commit._put_own = put


def _no_sync_of_records() -> None:
    from lance_memwal.store import records

    honest = records.put_or_find
    records.put_or_find = lambda store, path, data, **_: honest(store, path, data, sync=False)


BUGS: Final[dict[str, Callable[[], None]]] = {
    "none": lambda: None,
    "no sync of the log": _no_sync_of_the_log,
    "no sync of names": _no_sync_of_names,
    "no sync of SSTables": _no_sync_of_sstables,
    "no sync before a trim": _no_sync_before_a_trim,
    "no sync of the new table": _no_sync_of_the_new_table,
    "no sync of our versions": _no_sync_of_our_versions,
    "no sync of records": _no_sync_of_records,
}
ONLY_LANCE: Final = frozenset({"no sync before a trim", "no sync of the new table"})
