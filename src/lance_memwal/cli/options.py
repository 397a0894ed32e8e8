"""Options that many commands share, and how their text becomes values.

Owns the spelling of shared options. Invariant: a text that does not fit is a usage error (exit status 2) that names the
option.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.view import TableView
from lance_memwal.rows.merging import LastWrite
from lance_memwal.rows.text_values import typed_key, typed_value
from lance_memwal.table import Table, newest_base, open_table

Uri = Annotated[str, typer.Argument(help="The table: a path, file://, s3://, gs:// or az://.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--storage-option", "-o", metavar="KEY=VALUE", help="An option for the object store; repeatable."),
]
Shard = Annotated[
    str | None, typer.Option("--shard", help="Manual shards only: the shard to write to, or new.", show_default=False)
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="MOMENT",
        help="As of then: a snapshot, a checkpoint, a time with a zone, or a base version.",
        show_default=False,
    ),
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


def open_for(uri: str, pairs: list[str] | None, *, for_repair: bool = False) -> Table:
    """The table at `uri`."""
    return open_table(uri, storage_options=storage_options(pairs), for_repair=for_repair)


def as_of(table: Table, at: str | None) -> Table | TableView:
    """The table, or what it was at a moment."""
    return table if at is None else table.at(at)


def split_names(text: str | None) -> list[str] | None:
    """Names separated by commas; None where nothing was given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def sequence_of(table: Table, text: str) -> Any:
    """The sequence of a delete as typed."""
    merge = table.merge
    if not isinstance(merge, LastWrite):
        raise InvalidInputError("--sequence is for tables that put their rows in order (--merge last-write:column)")
    return typed_value(text, table.schema.field(merge.sequence), "column")


def key_of(table: Table, text: str) -> Any:
    """A key as typed: a value for a single key, a JSON array or object for a composite one."""
    return typed_key(newest_base(table).columns, text)


def shard_for_writing(table: Table, shard: str | None) -> dict[str, Any]:
    """The writer's setting that names its shard: only tables with manual shards need one, and they do."""
    if table.sharding.is_routed:
        if shard is not None:
            raise InvalidInputError("rows of this table go to the shards that their values name: leave --shard out")
        return {}
    if shard is not None:
        return {} if shard == "new" else {"shard_id": shard}
    known = [info.shard_id for info in table.shards()]
    if not table.primary_key or not known:
        return {}
    listed = ", ".join(known[:4]) + (", …" if len(known) > 4 else "")
    raise InvalidInputError(f"the table has manual shards: give --shard new, or the one that holds the keys: {listed}")
