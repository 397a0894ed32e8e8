"""What is true in a forked child.

Owns the list of what a child must not use, and the note that Lance was used before the fork. Invariants:

1. In a child every writer of the parent is closed, at once, whatever the parent's threads were doing: two processes must
   not share an epoch, and locks that those threads held are never released there.
2. Lance's threads stay with the parent, and what it does in a child is luck (seen with pylance 14: one child in a hundred
   dies of SIGSEGV). A child of a process that used Lance gets an error at once instead.
3. The list keeps no writer alive.
4. The system is asked to tell of forks when there is something to do in a child, not before.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from lance_memwal.errors import UnavailableError


class Owner(Protocol):
    """Something that must not be used in a forked child."""

    def orphan(self) -> None:
        """Become closed, without touching storage and without waiting for any lock."""
        ...


_orphans: dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]] = {}  # owners, and what closes each
_hooks: dict[Callable[[], None], None] = {}
_is_told = False
_is_used = False
_is_lost = False


def close_in_child(owner: Owner | Callable[[], None]) -> None:
    """Close `owner`, by its `orphan` or by the bound method that is given, in every child that is forked from now on."""
    _be_told()
    orphan: Any = owner if callable(owner) else owner.orphan
    key = id(orphan.__self__)
    _orphans[key] = weakref.ref(orphan.__self__, lambda _: _orphans.pop(key, None)), orphan.__func__


def run_in_child(hook: Callable[[], None]) -> None:
    """Call `hook`, once however often it is given, in every child that is forked from now on; it may wait for no lock."""
    _be_told()
    _hooks[hook] = None


def use_lance() -> None:
    """Note that this process uses Lance; `UnavailableError` if it was forked from one that did."""
    global _is_used
    if _is_lost:
        raise UnavailableError(
            "this process was forked from one that uses Lance, which does not survive that: start it with spawn or "
            "forkserver, or open tables only after the fork",
            ambiguous=False,
            retryable=False,
        )
    if not _is_used:
        _be_told()
        _is_used = True


def _be_told() -> None:
    global _is_told
    if not _is_told:
        _is_told = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    global _is_lost
    _is_lost = _is_lost or _is_used
    for hook in list(_hooks):
        hook()
    owners = [(owner, orphan) for ref, orphan in list(_orphans.values()) if (owner := ref()) is not None]
    _orphans.clear()
    for owner, orphan in owners:
        orphan(owner)
