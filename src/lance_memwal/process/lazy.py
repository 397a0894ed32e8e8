"""Values that an object computes when they are first asked for.

Owns `lazy`. Invariant: whoever computes one holds no lock. `functools.cached_property` of Python 3.11 holds one for all
objects of a class: a read of one table would wait until another one has read its files. Two threads may compute the same
value, and one of the two is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class lazy(Generic[_T]):  # noqa: N801
    """A property that reads files, kept once it is there; for pure ones `cached_property` does."""

    def __init__(self, make: Callable[[Any], _T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> _T:
        value = instance.__dict__[self._name] = self._make(instance)
        return value
