"""Creating an object whose bytes nobody else writes.

Owns `put_or_find` and `found_instead`. Invariant: "exists already" is no loss where our own bytes lie there: a retry below us
hid the answer to the first attempt. To take that for somebody else's object would give up, or remove, what is there.
"""

from __future__ import annotations

from lance_memwal.errors import ObjectExistsError
from lance_memwal.store.port import ObjectStore

__all__ = ["found_instead", "put_or_find"]


def put_or_find(
    store: ObjectStore, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True
) -> bytes | None:
    """None once `path` holds `data`, durable with `sync`; otherwise what it holds instead."""
    try:
        store.put_new(path, data, sync=sync, make_directory=make_directory)
    except ObjectExistsError:
        return found_instead(store, path, data, sync=sync)
    return None


def found_instead(store: ObjectStore, path: str, data: bytes, *, sync: bool) -> bytes | None:
    """What `path` holds, unless that is `data`, which is durable then with `sync`: the attempt may have failed at just that."""
    found = store.get(path)
    if found != data:
        return found
    if sync:
        store.sync_tree(path)
    return None
