"""What notebooks show of our values: a title, some facts, and a table.

Owns the HTML. Invariants: every text is escaped and of a bounded length, the number of rows is bounded, and nothing is read
or asked for: it is made of what the caller holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from html import escape
from typing import Any

import pyarrow as pa

__all__ = ["html_of", "html_of_report", "html_of_schema"]

_LONGEST = 120
_MOST_ROWS = 50


def html_of(title: str, facts: Mapping[str, object], header: Sequence[str] = (), rows: Collection[Any] = ()) -> str:
    """A title, a line of facts, and a table of `rows`, which are sequences in the order of `header`."""
    parts = [f"<b>{_text(title)}</b>"]
    if facts:
        parts.append("<br>" + ", ".join(f"{_text(name)}: {_text(value)}" for name, value in facts.items()))
    if rows:
        parts.append(f"<table><thead>{_row(header, 'th')}</thead><tbody>")
        parts += [_row(row, "td") for _, row in zip(range(_MOST_ROWS), rows, strict=False)]
        parts.append("</tbody></table>")
    if len(rows) > _MOST_ROWS:
        parts.append(f"… {len(rows) - _MOST_ROWS:,} more")
    return f"<div>{''.join(parts)}</div>"


def html_of_schema(title: str, facts: Mapping[str, object], schema: pa.Schema) -> str:
    """A title, a line of facts, and the columns."""
    rows = [(field.name, field.type, "" if field.nullable else "not null") for field in schema]
    return html_of(title, facts, ("column", "type", ""), rows)


def html_of_report(report: Any) -> str:
    """A dataclass: its plain fields as facts, its first list of other dataclasses as a table."""
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    lists = [
        value for value in values.values() if isinstance(value, (list, tuple)) and value and is_dataclass(value[0])
    ]
    facts = {name: value for name, value in values.items() if _is_plain(value)}
    counts = {name: len(value) for name, value in values.items() if isinstance(value, (list, tuple, dict))}
    items = lists[0] if lists else ()
    header = [field.name for field in fields(items[0])] if items else []
    rows = [[_shown(getattr(item, name)) for name in header] for item in items]
    return html_of(type(report).__name__, {**facts, **counts}, header, rows)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, Enum))


def _shown(value: object) -> object:
    """A cell: plain values as they are, others by their number."""
    return value if _is_plain(value) or not isinstance(value, (list, tuple, dict)) else len(value)


def _row(cells: Sequence[object], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(value: object) -> str:
    if isinstance(value, float):
        value = f"{value:.3g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    text = str(value.value if isinstance(value, Enum) else value)
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
