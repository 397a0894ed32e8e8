"""How answers and errors become JSON.

Owns `Refusal`, `error_of` and `Cells`. Invariants:

1. An error is its type, one text that says what to do, and whether the same request may succeed later. An error that nobody
   foresaw tells its type alone: its text may hold anything.
2. A cell is short, and an answer has at most so many bytes; what was cut is said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from lance_memwal.errors import (
    CollectedError,
    ConflictError,
    InvalidInputError,
    MemWalError,
    MissingLibraryError,
    UnavailableError,
)
from lance_memwal.rows.text_values import to_plain

_LOG = logging.getLogger(__name__)
MAX_ANSWER_BYTES: Final = 4 << 20
MAX_CELL_CHARACTERS: Final = 2_000
_MAX_ITEMS: Final = 16
_ROWS_AT_ONCE: Final = 64
_STATUS: Final[tuple[tuple[type[MemWalError], int], ...]] = (
    (InvalidInputError, 400),
    (CollectedError, 410),
    (ConflictError, 409),
    (MissingLibraryError, 501),
    (UnavailableError, 503),
)


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure
    """A request that is not answered; `text` says why."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(text)


def error_of(error: BaseException) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell of an error."""
    if isinstance(error, Refusal):
        return error.status, _body("Refused", error.text, retryable=error.status in (429, 503))
    if isinstance(error, MemWalError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        return status, _body(type(error).__name__, str(error), retryable=error.retryable)
    _LOG.error("unexpected error", exc_info=error)
    text = f"unexpected {type(error).__name__}: the terminal of memwal ui says where it came from"
    return 500, _body("Unexpected", text, retryable=False)


def _body(kind: str, text: str, *, retryable: bool) -> dict[str, Any]:
    return {"error": {"kind": kind, "text": text, "retryable": retryable}}


def columns_told(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns of an answer: name, type, and whether they hold numbers."""
    return [{"name": field.name, "type": str(field.type), "number": _is_number(field.type)} for field in schema]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


@dataclass(slots=True)
class Cells:
    """Rows as JSON, as long as there is room for them."""

    most_rows: int
    rows: list[list[Any]] = field(default_factory=list)
    size_bytes: int = 0
    cut: int = 0
    more: bool = False

    def add(self, batches: Iterable[pa.RecordBatch | pa.Table], columns: int) -> Cells:
        """Take the first so many columns of all rows, until there is no room."""
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                part = batch.slice(start, _ROWS_AT_ONCE)
                for row in zip(*(part.column(number).to_pylist() for number in range(columns)), strict=True):
                    if len(self.rows) >= self.most_rows or self.size_bytes >= MAX_ANSWER_BYTES:
                        self.more = True
                        return self
                    self._take(row)
        return self

    def _take(self, values: Sequence[Any]) -> None:
        row = [self._cell(value) for value in values]
        self.size_bytes += sum(len(cell) if isinstance(cell, str) else 24 for cell in row)
        self.rows.append(row)

    def _cell(self, value: Any) -> Any:
        """A value as the page shows it: numbers that JavaScript has, and texts."""
        plain = to_plain(value)
        if plain is None or isinstance(plain, bool | float):
            return str(value) if plain is None and value is not None else plain  # NaN and infinities have names
        if isinstance(plain, int):
            return plain if abs(plain) <= 1 << 53 else str(plain)
        text = plain if isinstance(plain, str) else self._listed(plain)
        if len(text) > MAX_CELL_CHARACTERS:
            self.cut += 1
            text = f"{text[:MAX_CELL_CHARACTERS]}…"
        return text

    def _listed(self, plain: Any) -> str:
        if not isinstance(plain, list) or not all(isinstance(item, int | float) for item in plain):
            return json.dumps(plain, ensure_ascii=False)
        numbers = [f"{item:.4g}" if isinstance(item, float) else str(item) for item in plain[:_MAX_ITEMS]]
        if len(plain) <= _MAX_ITEMS:
            return f"[{', '.join(numbers)}]"
        self.cut += 1
        return f"[{', '.join(numbers[:4])}, … {len(plain)} values]"
