"""What the command line prints: tables for people, JSON for programs, one line for an error, progress of long work.

Owns all printing. Invariants:

1. Answers go to standard output, errors, remarks and progress to standard error, so that output can be piped.
2. With `--json` an answer is JSON: one object, or one object per line for rows. NaN and infinities are null.
3. An error is one line that says what to do.
4. What is printed for people fits the width of the terminal, and no control character of the data reaches it.
5. Progress is not shown if standard error is not a terminal, or with `--json`, and is removed when the work is done.
"""

from __future__ import annotations

import datetime
import functools
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as Grid
from rich.text import Text

from lance_memwal.compact.reports import Progress as Told
from lance_memwal.rows.text_values import to_plain

GAP = 2
_NARROWEST = 10  # columns that would be narrower are printed as one record after the other
_CHUNK_ROWS = 1000
_COPIED_BYTES = 1 << 20
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
}


# -------------------------------------------------------------------------------------------------------------- JSON


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    print(json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False))


def rows_as_json(records: Iterable[Any]) -> None:
    """Records as JSON, one per line."""
    for record in records:
        print_json(record)


def print_bytes(file: io.BufferedIOBase) -> None:
    """The bytes of a file, as they are."""
    shutil.copyfileobj(file, sys.stdout.buffer, _COPIED_BYTES)
    sys.stdout.flush()


# ------------------------------------------------------------------------------------------------------- our reports


def show(report: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
    """One answer of ours: a JSON object, or names and values."""
    if as_json:
        print_json(report)
        return
    if title:
        _out().print(Text(title, style="bold"))
    _record({_label(name): _figure(name, value) for name, value in report.items()})


def rows_as_table(records: Sequence[Mapping[str, Any]], headings: Mapping[str, str], title: str = "") -> None:
    """Records of ours as a table: `headings` says which of their fields, and what stands above them."""
    if title:
        _out().print(Text(title, style="bold"))
    cells = [[_figure(name, record.get(name)) for name in headings] for record in records]
    numbers = [_all_numbers(record.get(name) for record in records) for name in headings]
    _out().print(grid(list(headings.values()), cells, numbers))


def problems(records: Sequence[Mapping[str, Any]]) -> None:
    """What is wrong, where, and what to do about it, in full."""
    for number, record in enumerate(records, 1):
        _out().print(Text(f"problem {number} of {len(records)}", style="bold"))
        _record({name: clean(str(record[name])) for name in ("where", "what", "remedy") if record.get(name)})


def _label(name: str) -> str:
    """The name of a figure for people; its unit stands beside the number."""
    known = "size" if name in ("bytes", "size_bytes") else name.replace("_bytes", "_size")
    return known.replace("_", " ")


def _figure(name: str, value: Any) -> str:
    """A value of ours for people."""
    if value is None or value in ([], {}, ()):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and (name == "bytes" or name.endswith("_bytes")):
        return as_size(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, list | tuple) and all(isinstance(item, str | int) for item in value):
        return clean(", ".join(map(str, value)))
    return _cell(value)


def as_size(number: int) -> str:
    """Bytes for people."""
    size, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{number} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def as_seconds(seconds: float) -> str:
    """A time for people: 0.25 s, 12 s, 3 min, 5 h, 2 days."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"


# ------------------------------------------------------------------------------------------------------- users' rows


def print_batches(batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, as_json: bool) -> int:
    """Rows of a table as they come; returns how many."""
    count, widths = 0, list[int]()
    for rows in _chunks(batches):
        if as_json:
            rows_as_json(rows)
        else:
            widths = _rows(rows, columns, first=count + 1, widths=widths)
        count += len(rows)
    if not as_json and not count:
        _rows([], columns, first=1)
    return count


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    """Rows in lists that share the widths of their columns: small batches are joined, large ones are cut."""
    waiting: list[dict[str, Any]] = []
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            waiting += batch.slice(start, _CHUNK_ROWS).to_pylist()
            if len(waiting) >= _CHUNK_ROWS:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def print_row(row: Mapping[str, Any], *, as_json: bool) -> None:
    """One row of a table."""
    if as_json:
        print_json(row)
    else:
        _record({clean(name): _cell(value) for name, value in row.items()})


@functools.cache
def _out() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)  # a pipe has no width to respect


def _rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, first: int, widths: Sequence[int] = ()
) -> list[int]:
    """Print rows; `widths` are those of the rows above, which have the header. Returns the widths of these."""
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    names = [clean(name) for name in columns]
    if sum(min(width, _NARROWEST) + GAP for width in _natural(names, cells)) - GAP > _out().width:
        for number, row in enumerate(cells, first):
            _out().print(Text(f"row {number}", style="bold"))
            _record(dict(zip(names, row, strict=True)))
        return []
    _out().print(grid(names, cells, [_all_numbers(row.get(name) for row in rows) for name in columns], widths))
    return list(widths) or _natural(names, cells)


def _cell(value: Any) -> str:
    """A value of a row for people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, list) and len(value) > 8 and all(isinstance(item, int | float) for item in value):
        return f"[{value[0]:.4g}, {value[1]:.4g}, … {len(value)} values]"
    plain = to_plain(value)
    return clean(json.dumps(plain, ensure_ascii=False) if isinstance(plain, list | dict) else str(plain))


# --------------------------------------------------------------------------------------------------------- rendering


def clean(text: str) -> str:
    """`text` with its control characters spelled out: data must not drive a terminal."""
    return text.translate(_VISIBLE)


def _record(record: Mapping[str, str]) -> None:
    """Names and values, one per line."""
    grid = Grid(show_header=False, box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in record.items():
        grid.add_row(Text(name), Text(value))
    _out().print(grid)


def _natural(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """The widths that the columns would have if there were room."""
    return [max(cell_len(name), *(cell_len(row[i]) for row in cells), 1) for i, name in enumerate(names)]


def grid(
    names: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[bool], below: Sequence[int] = ()
) -> Grid:
    """One line per row, ready to be printed; the widest columns are cut where the terminal is too narrow.

    `below` are the widths of a grid that these rows go on with: it has the header.
    """
    made = Grid(
        box=None if below else box.SIMPLE_HEAD,
        show_header=not below,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP if below else GAP - 1, 0, 0),
        header_style="bold",
    )
    for number, name in enumerate(names):
        side: Literal["left", "right"] = "right" if numbers[number] else "left"
        made.add_column(_line(name), justify=side, min_width=below[number] if below else None)
    for row in cells:
        made.add_row(*map(_line, row))
    return made


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _all_numbers(values: Iterable[Any]) -> bool:
    kinds = {type(value) for value in values} - {type(None)}
    return bool(kinds) and kinds <= {int, float}


def note(text: str) -> None:
    """A remark for people, on standard error."""
    Console(stderr=True).print(Text(clean(text), style="dim"), soft_wrap=True)


def error(text: str) -> None:
    """One line on standard error."""
    print(f"memwal: {clean(' '.join(text.split()))}", file=sys.stderr)


# ----------------------------------------------------------------------------------------------------------- progress


class _Rate(ProgressColumn):
    """How much is done per second."""

    def __init__(self, unit: str = "") -> None:
        super().__init__()
        self._unit = f" {unit}" if unit else ""

    def render(self, task: Task) -> Text:
        """The rate so far, as text."""
        done, seconds = task.fields.get("counted", task.completed), task.finished_time or task.elapsed
        return Text(f"{done / seconds:,.0f}{self._unit}/s" if done and seconds else "")


def _bars(*columns: ProgressColumn, hidden: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal)


@contextmanager
def step_bars(unit: str, *, hidden: bool) -> Iterator[Told]:
    """A callback that shows a bar per kind of step, with rate and remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), _Rate(unit))
    with _bars(*columns, TimeRemainingColumn(), hidden=hidden) as bars:
        tasks: dict[str, object] = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield told


@contextmanager
def file_bar(what: str, total_bytes: int, *, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """A callback for bytes and rows so far: bytes say how much is left, rows how fast it goes."""
    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[counted]:,} rows"))
    with _bars(*columns, _Rate("rows"), TimeRemainingColumn(), hidden=hidden) as bars:
        task = bars.add_task(what, total=total_bytes or None, counted=0)
        yield lambda done_bytes, rows: bars.update(task, completed=done_bytes, counted=rows)


@contextmanager
def working(what: str, *, hidden: bool) -> Iterator[None]:
    """A sign of life for work that cannot tell how much is left."""
    with _bars(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), hidden=hidden) as bars:
        bars.add_task(what, total=None)
        yield
