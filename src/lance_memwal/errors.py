"""Every error that leaves lance-memwal, named after what the caller must do.

Owns the exception tree below `MemWalError`. Invariants:

1. Every error raised on purpose derives from `MemWalError` and carries `retryable`.
2. No error text carries credentials or row data; keys that have no place are named, a few of them.
3. Nobody matches on message text: what a caller may need is an attribute.
4. An error passes from one process to another (pools, Spark) as it is.

`need` loads a library that only a part of the package needs, and says in one line what to install.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

__all__ = [
    "ChangedKeysError",
    "ClosedError",
    "CollectedError",
    "ConflictError",
    "CorruptDataError",
    "DirectoryNotFoundError",
    "FencedError",
    "InvalidInputError",
    "MemWalError",
    "MissingLibraryError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "SearchIncompleteWarning",
    "TableReplacedError",
    "UnavailableError",
    "UnsupportedFormatError",
    "WriterPoisonedError",
    "is_failure",
    "is_panic",
    "reason_of",
]

_SOURCE_PLACE = re.compile(r",? \S+\.rs:\d+:\d+")


class MemWalError(Exception):
    """Root of all errors of this package; `retryable` says whether the same call may succeed later."""

    retryable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), self.args, self.__dict__)


def rebuilt(kind: type[MemWalError], args: tuple[Any, ...], attributes: dict[str, Any]) -> MemWalError:
    """An error that another process raised: its text is made already."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def is_panic(error: BaseException) -> bool:
    """Whether Lance's native code gave up; its exception cannot be imported and is no `Exception`."""
    return type(error).__name__ == "PanicException"


def is_failure(error: BaseException) -> bool:
    """Whether a call failed, by a panic too; an interrupt or the end of the program is none."""
    return isinstance(error, Exception) or is_panic(error)


def reason_of(error: BaseException) -> str:
    """Return the first line of an error, or of its cause, without Lance's source position and with NULs as `\\0`."""
    text = str(error).rpartition("\ncaused by\n")[2]
    line = (text.splitlines() or [type(error).__name__])[0].replace("\0", "\\0")
    return _SOURCE_PLACE.sub("", line)


class InvalidInputError(MemWalError, ValueError):
    """Fix the call: schema, configuration, key, filter or accessor does not fit."""


class FencedError(MemWalError):
    """A newer epoch owns the shard: stop writing with this writer, open a new one if the shard is yours.

    Readers of a named consumer are fenced by the next one likewise.
    """

    def __init__(self, our_epoch: int, current_epoch: int, detail: str = "", *, consumer: str | None = None) -> None:
        self.our_epoch = our_epoch
        self.current_epoch = current_epoch
        text = f"epoch {our_epoch} was superseded by epoch {current_epoch}"
        if consumer is None:
            text = f"Writer fenced: {text}; stop this writer, reopen the shard only if it should own it"
        else:
            text = f"Reader of the consumer {consumer!r} fenced: {text}; stop this one, open it again only if it should read"
        super().__init__(f"{text} ({detail})" if detail else text)


class WriterPoisonedError(MemWalError):
    """The log could not be written, or a commit was interrupted: reopen the shard. `__cause__` is the first failure.

    `ambiguous` says whether the rows of this call may be in the table.
    """

    ambiguous: bool = False


class ConflictError(MemWalError):
    """Lost a race for good: reload and retry."""

    retryable = True


class ChangedKeysError(ConflictError):
    """Keys of a write were written by others since the snapshot that it was planned on: plan it again."""


class UnavailableError(MemWalError, OSError):
    """Storage cannot be reached: retry later. `ambiguous` says whether the effect may have happened."""

    retryable = True

    def __init__(self, message: str, *, ambiguous: bool = True, retryable: bool = True) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous
        self.retryable = retryable


class _PlacedError(MemWalError):
    """An error about an object on storage; its text says where."""

    def __init__(self, message: str, *, path: str | None = None, position: int | None = None) -> None:
        self.path = path
        self.position = position
        where = [f"path={path}"] if path is not None else []
        where += [f"position={position}"] if position is not None else []
        super().__init__(f"{message} [{', '.join(where)}]" if where else message)


class CorruptDataError(_PlacedError):
    """Bytes on storage are damaged: run verify. `path` and `position` say where."""


class UnsupportedFormatError(_PlacedError):
    """Whole, but not understood by this version: upgrade memwal. `path` and `position` say where."""


class UndecidedColumnsError(UnsupportedFormatError):
    """Rows would lose values: no kept base version shows which column these are of. Run `Table.repair(reused_ids=...)`.

    `shard_id` and `generation` name the SSTable, if the rows are in one.
    """

    def __init__(
        self, message: str, *, position: int | None = None, shard_id: str | None = None, generation: int = 0
    ) -> None:
        super().__init__(message, position=position)
        self.shard_id = shard_id
        self.generation = generation


class CollectedError(MemWalError, LookupError):
    """Garbage collection passed this position or snapshot: start from `first_position()`, or load again."""


class ClosedError(MemWalError, RuntimeError):
    """The writer is closed: open a new one."""


class TableReplacedError(MemWalError):
    """The table at this place is another one, or an older state of it: open it again.

    It was removed, overwritten, restored or made anew since it was opened. After a restore the text names what
    `Table.repair` can do.
    """


class MissingLibraryError(MemWalError, ImportError):
    """A library that this call needs is not installed: the text says what to install."""


class ObjectNotFoundError(MemWalError, LookupError):
    """The object is not in the store (an answer of the store, not a failure)."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"object not found: {path}")


class ObjectExistsError(MemWalError):
    """A create-only put met an object that holds other bytes (an answer of the store, not a failure)."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"object exists already: {path}")


class DirectoryNotFoundError(ObjectNotFoundError):
    """A put that must make no directory met one that is not there: nothing was written (local paths)."""


class SearchIncompleteWarning(UserWarning):
    """A search answered from the base table alone: `left_out` fresh rows were not searched."""

    def __init__(self, text: str, left_out: int) -> None:
        self.left_out = left_out
        super().__init__(text)


def need(module: str, extra: str, what: str) -> Any:
    """The module; `MissingLibraryError` that says how to install it if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingLibraryError(f"{what} needs {error.name}: pip install 'lance-memwal[{extra}]'") from None
