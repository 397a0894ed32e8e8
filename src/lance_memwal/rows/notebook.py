"""The HTML form of a table or a report, for notebooks: escaped, bounded, and made without reading storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from html import escape
from typing import Any

_MAX_CHARACTERS = 120
_MAX_ROWS = 50


def html_of(title: str, facts: Mapping[str, object], rows: Sequence[Mapping[str, object]] = ()) -> str:
    """A title, a line of facts, and a table of `rows`; lists and mappings among the values are shown by their length."""

    def text(value: object) -> str:
        if isinstance(value, list | tuple | dict):
            value = len(value)
        number = f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else None
        shown = number or str(value.value if isinstance(value, Enum) else value)
        return escape(shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}…")

    def row(cells: Any, tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{text(cell)}</{tag}>' for cell in cells)}</tr>"

    line = ", ".join(f"{text(name)}: {text(value)}" for name, value in facts.items())
    table = "".join(row(values.values(), "td") for values in rows[:_MAX_ROWS])
    head = f"<table><thead>{row(rows[0], 'th')}</thead><tbody>{table}</tbody></table>" if rows else ""
    more = f"… {len(rows) - _MAX_ROWS:,} more" if len(rows) > _MAX_ROWS else ""
    return f"<div><b>{text(title)}</b><br>{line}{head}{more}</div>"


def html_of_report(report: Any) -> str:
    """A report: its fields as facts, the items of its first list of dataclasses as rows."""
    facts = {field.name: getattr(report, field.name) for field in fields(report)}
    lists = (value for value in facts.values() if isinstance(value, list | tuple) and value and is_dataclass(value[0]))
    rows = [{field.name: getattr(item, field.name) for field in fields(item)} for item in next(lists, ())]
    return html_of(type(report).__name__, facts, rows)
