"""Commands that make and fill tables: create, enable, put, delete.

Owns no engine logic: each command is one call of the facade. Called by: `memwal.cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from memwal.cli.files import read_batches, read_schema, total_rows
from memwal.cli.options import Json, Options, Uri, key_of, open_for, split_names, storage_options
from memwal.cli.output import show
from memwal.clock import SYSTEM_CLOCK
from memwal.errors import InvalidInputError
from memwal.sharding import Bucket, Identity, Sharding, Unsharded
from memwal.table import create_table
from memwal.table import enable as enable_table

__all__ = ["create", "delete", "enable", "put"]

_TYPES = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(), "bool": pa.bool_(),
    "string": pa.string(), "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us"),
}  # fmt: skip
_Key = Annotated[str | None, typer.Option("--primary-key", "-k", help="Key columns, separated by commas.")]
_Sharding = Annotated[
    str | None, typer.Option("--sharding", "-s", help="unsharded, bucket(column,n) or identity(column).")
]


def _sharding(text: str | None) -> Sharding | None:
    if text is None:
        return None
    name, _, rest = text.strip().partition("(")
    arguments = [part.strip() for part in rest.rstrip(") ").split(",") if part.strip()]
    if name == "unsharded" and not arguments:
        return Unsharded()
    if name == "bucket" and len(arguments) == 2 and arguments[1].isdigit():
        return Bucket(arguments[0], int(arguments[1]))
    if name == "identity" and len(arguments) == 1:
        return Identity(arguments[0])
    raise typer.BadParameter(
        f"{text!r} is none of unsharded, bucket(column,n), identity(column)", param_hint="--sharding"
    )


def _schema(columns: str) -> pa.Schema:
    fields = []
    for part in columns.split(","):
        name, _, kind = part.strip().partition(":")
        vector = kind.startswith("vector[") and kind.endswith("]") and kind[7:-1].isdigit()
        if not name or not (vector or kind in _TYPES):
            known = ", ".join(_TYPES)
            raise typer.BadParameter(
                f"{part.strip()!r}: give name:type with type {known} or vector[n]", param_hint="--columns"
            )
        fields.append(pa.field(name, pa.list_(pa.float32(), int(kind[7:-1])) if vector else _TYPES[kind]))
    return pa.schema(fields)


def create(
    uri: Uri,
    columns: Annotated[
        str | None, typer.Option("--columns", "-c", help="Columns as name:type, separated by commas.")
    ] = None,
    like: Annotated[Path | None, typer.Option("--like", help="Take the columns of this data file.")] = None,
    primary_key: _Key = None,
    sharding: _Sharding = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Do nothing if the table is there.")] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Make a table with a write path in front."""
    if (columns is None) == (like is None):
        raise typer.BadParameter("give either --columns or --like", param_hint="--columns")
    schema = _schema(columns) if columns is not None else read_schema(like or Path())
    table = create_table(
        uri,
        schema,
        primary_key=split_names(primary_key),
        sharding=_sharding(sharding),
        storage_options=storage_options(storage_option),
        exist_ok=exist_ok,
    )
    answer = {"table": table.uri, "columns": table.schema.names, "primary_key": table.primary_key}
    show({**answer, "sharding": str(table.sharding), "version": int(table.dataset.version)}, as_json=json)


def enable(uri: Uri, sharding: _Sharding = None, storage_option: Options = None, json: Json = False) -> None:
    """Put a write path in front of an existing Lance table."""
    table = enable_table(uri, sharding=_sharding(sharding), storage_options=storage_options(storage_option))
    show({"table": table.uri, "primary_key": table.primary_key, "sharding": str(table.sharding)}, as_json=json)


def put(
    uri: Uri,
    files: Annotated[list[Path], typer.Argument(help="Parquet, CSV, JSON lines or Arrow files.", show_default=False)],
    batch_rows: Annotated[int, typer.Option(help="Rows per put: each is durable when it returns.", min=1)] = 8192,
    fsync: Annotated[bool, typer.Option(help="Survive power loss (local paths).")] = True,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Insert or replace the rows of data files; every put is durable when it returns."""
    table = open_for(uri, storage_option)
    started, rows = SYSTEM_CLOCK.monotonic(), 0
    totals = [total_rows(path) for path in files]
    known = sum(total for total in totals if total is not None) if None not in totals else None
    with table.writer(fsync=fsync) as writer, _progress(hidden=json) as progress:
        task = progress.add_task("put", total=known)
        for path in files:
            for batch in read_batches(path, batch_rows):
                writer.put(batch)
                rows += batch.num_rows
                progress.update(task, completed=rows)
    seconds = SYSTEM_CLOCK.monotonic() - started
    show(
        {"rows": rows, "seconds": round(seconds, 3), "rows_per_second": round(rows / max(seconds, 1e-9))}, as_json=json
    )


class _Rate(ProgressColumn):
    """Rows per second."""

    def render(self, task: Task) -> Text:
        """The rate so far, as text."""
        return Text("" if task.speed is None else f"{task.speed:,.0f} rows/s")


def _progress(*, hidden: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    )


def delete(
    uri: Uri,
    keys: Annotated[list[str] | None, typer.Argument(help="Keys; JSON arrays for composite ones.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A data file that holds the key columns.")] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Delete rows by key."""
    if not keys and file is None:
        raise typer.BadParameter("give keys, or --file", param_hint="keys")
    table = open_for(uri, storage_option)
    count = 0
    with table.writer() as writer:
        if keys:
            writer.delete([key_of(table, key) for key in keys])
            count += len(keys)
        if file is not None:
            for batch in read_batches(file, 8192):
                missing = [name for name in table.primary_key if name not in batch.schema.names]
                if missing:
                    raise InvalidInputError(f"{file} has no key column {missing[0]!r}")
                writer.delete(batch)
                count += batch.num_rows
    show({"deleted_keys": count}, as_json=json)
