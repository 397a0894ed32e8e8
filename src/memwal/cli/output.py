"""What the command line prints: tables for people, JSON for programs, one line for an error.

Owns all printing. Invariants:

1. Answers go to standard output, errors and progress to standard error, so that output can be piped.
2. With `--json` an answer is JSON: one object, or one object per line for rows.
3. An error is one line that says what to do.

Called by: every command.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid

__all__ = ["error", "note", "rows_as_json", "rows_as_table", "show", "show_record", "to_plain"]

_OUT = Console(width=None if sys.stdout.isatty() else 160)  # a pipe has no width to respect
_ERR = Console(stderr=True)
_MAX_CELL = 60
_WHOLE = frozenset({"shard_id"})  # to be copied by hand: never broken over lines


def to_plain(value: Any) -> Any:
    """`value` as JSON can hold it: bytes in base64, times in ISO form, values as objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [to_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    return value


def show(value: Any, *, as_json: bool, title: str = "") -> None:
    """One answer: a JSON object, or a grid of names and values."""
    plain = to_plain(value)
    if as_json:
        print(json.dumps(plain, ensure_ascii=False))
        return
    show_record(plain if isinstance(plain, Mapping) else {"value": plain}, title)


def show_record(record: Mapping[str, Any], title: str = "") -> None:
    """A grid of names and values."""
    grid = Grid(title=title or None, show_header=False, title_justify="left", box=None, pad_edge=False)
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in record.items():
        grid.add_row(name.replace("_", " "), _cell(value, limit=None))
    _OUT.print(grid)


def rows_as_table(records: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str = "") -> None:
    """Records as a grid with a header."""
    grid = Grid(title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        whole = column in _WHOLE
        grid.add_column(column.replace("_", " "), overflow="fold", no_wrap=whole, min_width=36 if whole else None)
    for record in records:
        grid.add_row(*(_cell(record.get(column)) for column in columns))
    _OUT.print(grid)


def rows_as_json(records: Iterable[Mapping[str, Any]]) -> None:
    """Records as JSON, one per line."""
    for record in records:
        print(json.dumps(to_plain(record), ensure_ascii=False))


def print_batches(batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, as_json: bool, title: str = "") -> int:
    """Rows as they come (JSON) or as one grid; returns how many."""
    if as_json:
        count = 0
        for batch in batches:
            rows_as_json(batch.to_pylist())
            count += batch.num_rows
        return count
    records = [record for batch in batches for record in batch.to_pylist()]
    rows_as_table(records, columns, title)
    note(f"{len(records)} rows")
    return len(records)


def note(text: str) -> None:
    """A remark for people, on standard error."""
    _ERR.print(text, style="dim", highlight=False)


def error(text: str) -> None:
    """One line on standard error."""
    line = " ".join(text.split())
    print(f"memwal: {line}", file=sys.stderr)


def _cell(value: Any, limit: int | None = _MAX_CELL) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and len(value) > 8 and all(isinstance(item, int | float) for item in value):
        return f"[{value[0]:.4g}, {value[1]:.4g}, … {len(value)} values]"
    text = json.dumps(to_plain(value), ensure_ascii=False) if isinstance(value, list | dict) else str(to_plain(value))
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
