"""Errors that no retry of a task can help: they go to the driver as values, and are raised there.

Owns which errors these are. Spark runs a failed task again, four times by default, and a query then fails with the last of these
errors. What an input did wrong it does wrong each time. Invariants:

1. A task that refuses its rows ends well, after it has read all of its input: Spark goes on using its process.
2. The driver raises the error as it was, before it makes anything visible of that write where it still can.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from lance_memwal import errors
from lance_memwal.errors import (
    ChangedKeysError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    TableReplacedError,
    UnsupportedFormatError,
    rebuilt,
)

_PERMANENT = (ChangedKeysError, InvalidInputError, TableReplacedError, UnsupportedFormatError, CorruptDataError)
T = TypeVar("T")
Item = TypeVar("Item")


def refusing(work: Callable[[Iterator[Item]], T], given: Iterator[Item]) -> T | MemWalError:
    """What `work` makes of its input, or the error for which it must not be tried again."""
    try:
        return work(given)
    except _PERMANENT as error:
        deque(given, maxlen=0)
        return error


def raise_first(answers: Iterable[object]) -> None:
    """Raise the first error among what tasks answered."""
    for answer in answers:
        if isinstance(answer, MemWalError):
            raise answer


def error_text(error: MemWalError) -> str:
    """An error as text, for tasks that answer with rows or with text."""
    return json.dumps([type(error).__name__, list(map(str, error.args)), vars(error)], default=str)


def error_of(text: str) -> MemWalError:
    """The error that `error_text` was given."""
    name, arguments, attributes = json.loads(text)
    return rebuilt(getattr(errors, name, MemWalError), tuple(arguments), attributes)
