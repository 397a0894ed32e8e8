"""Options that many commands share, and how their text becomes values.

Owns the spelling of shared options. Invariant: a text that does not fit is a usage error (exit status 2) that names the
option.

Called by: every command.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import pyarrow as pa
import typer

from memwal.errors import InvalidInputError
from memwal.table import Table, open_table

__all__ = ["Columns", "Json", "Options", "Uri", "key_of", "open_for", "split_names", "storage_options"]

Uri = Annotated[str, typer.Argument(help="The table: a path, file://, s3://, gs:// or az://.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--storage-option", "-o", metavar="KEY=VALUE", help="An option for the object store; repeatable."),
]
Columns = Annotated[str | None, typer.Option("--columns", "-c", help="Column names, separated by commas.")]


def storage_options(pairs: list[str] | None) -> dict[str, str] | None:
    """The object store options of `-o KEY=VALUE`."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"give it as KEY=VALUE, not {name!r}", param_hint="--storage-option")
        found[name] = value
    return found or None


def open_for(uri: str, pairs: list[str] | None) -> Table:
    """The table at `uri`."""
    return open_table(uri, storage_options=storage_options(pairs))


def split_names(text: str | None) -> list[str] | None:
    """Names separated by commas; None where nothing was given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def key_of(table: Table, text: str) -> Any:
    """A key as typed: a value for a single key, a JSON array or object for a composite one."""
    columns = [table.schema.field(name) for name in table.primary_key]
    if not columns:
        raise InvalidInputError("the table has no primary key, so its rows cannot be addressed by key")
    if len(columns) == 1:
        return _scalar(text, columns[0])
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, list) and len(value) == len(columns):
        return tuple(value)
    if isinstance(value, dict):
        return value
    names = ", ".join(column.name for column in columns)
    raise InvalidInputError(f"the key has several columns ({names}): give a JSON array or object")


def _scalar(text: str, column: pa.Field) -> Any:
    if pa.types.is_integer(column.type):
        try:
            return int(text)
        except ValueError:
            raise InvalidInputError(f"key column {column.name!r} is {column.type}, {text!r} is no integer") from None
    if pa.types.is_boolean(column.type):
        if text.lower() not in ("true", "false"):
            raise InvalidInputError(f"key column {column.name!r} is a boolean: give true or false")
        return text.lower() == "true"
    return text.encode() if "binary" in str(column.type) else text
