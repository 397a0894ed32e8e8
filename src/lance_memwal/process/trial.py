"""Whether something of a call may be on storage, and what its caller is told then.

Owns `Trial`. Invariant: once something was tried whose effect is there, or may be, no error of the call says that nothing
happened: whoever believes that repeats it, and its rows are there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from lance_memwal.clock import in_order
from lance_memwal.errors import ChangedKeysError, ConflictError, UnavailableError

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Trial:
    """One call, with all its attempts. Its errors are told through this context."""

    __slots__ = ("is_begun",)

    def __init__(self) -> None:
        self.is_begun = False  # set once an effect is there, or may be

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if not self.is_begun or not isinstance(error, UnavailableError | ConflictError):
            return
        is_known = isinstance(error, ChangedKeysError)  # whoever plans anew sees what was written
        if not is_known and not (isinstance(error, UnavailableError) and error.ambiguous):
            raise UnavailableError(str(error), ambiguous=True, retryable=error.retryable) from error


def tried_in_order(call: Callable[[_In], _Out], items: Sequence[_In], at_once: int, name: str) -> Iterator[_Out]:
    """`in_order` of parts of one write: once a second one was begun, the first may be on storage."""
    tried: list[_In] = []
    with Trial() as trial:

        def begun(item: _In) -> _Out:
            tried.append(item)
            if len(tried) > 1:
                trial.is_begun = True
            return call(item)

        yield from in_order(begun, items, at_once, name)
