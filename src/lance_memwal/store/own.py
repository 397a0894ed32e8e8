"""Creating an object whose bytes nobody else writes.

Owns `put_or_find`. Invariant: "exists already" is no loss where our own bytes lie there: a retry below us hid the answer to
the first attempt. To take that for somebody else's object would give up, or remove, what is there.
"""

from __future__ import annotations

from lance_memwal.errors import ObjectExistsError
from lance_memwal.store.port import ObjectStore

__all__ = ["put_or_find"]


def put_or_find(
    store: ObjectStore, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True
) -> bytes | None:
    """None once `path` holds `data`, durable with `sync`; otherwise what it holds instead."""
    try:
        store.put_new(path, data, sync=sync, make_directory=make_directory)
    except ObjectExistsError:
        found = store.get(path)
        if found != data:
            return found
        if sync:
            store.sync_tree(path)
    return None
