"""Commands that make and fill tables: create, enable, put, update, delete.

Each command is one call of the public API. `put` delays Ctrl-C to the end of a put, so that it reports the rows that it wrote.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import pyarrow as pa
import typer

from lance_memwal.cli.files import DataFile, Format
from lance_memwal.cli.options import (
    Json,
    Options,
    Shard,
    Uri,
    key_of,
    open_for,
    sequence_of,
    shard_for_writing,
    split_names,
    storage_options,
)
from lance_memwal.cli.output import file_bar, note, show
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.log.shards import newest_manifests
from lance_memwal.rows.merging import LastWrite, Merge, merge_of_text, text_of_merge
from lance_memwal.rows.sharding import Sharding, sharding_of_text
from lance_memwal.rows.text_values import typed_columns
from lance_memwal.table import Table, create_table, newest_base
from lance_memwal.table import enable as enable_table
from lance_memwal.upkeep.tails import may_be_claimed

_AT_WORK_SECONDS = 60
_Key = Annotated[str | None, typer.Option("--primary-key", "-p", help="Key columns, separated by commas.")]
_Sharding = Annotated[
    str, typer.Option("--sharding", "-s", help="unsharded, bucket(column,n), identity(column) or manual.")
]
_AcrossShards = Annotated[
    bool,
    typer.Option("--allow-keys-across-shards", help="Rows of one key may be in several shards: newest per shard only."),
]
_Merge = Annotated[
    str | None,
    typer.Option(
        "--merge",
        "-m",
        help="What a later write of a key does: last-write:column (the larger value wins), first-row, or none (it wins).",
    ),
]
_Missing = Annotated[
    Literal["error", "null", "keep"] | None,
    typer.Option(help="Columns that a file leaves out: refused (the default with a primary key), null, or kept."),
]


def _sharding(text: str) -> Sharding:
    try:
        return sharding_of_text(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint="--sharding") from None


def _merge(text: str | None) -> Merge | None:
    try:
        return None if text is None else merge_of_text(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint="--merge") from None


def _schema(text: str) -> pa.Schema:
    try:
        return typed_columns(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint="--columns") from None


def create(
    uri: Uri,
    columns: Annotated[
        str | None, typer.Option("--columns", "-c", help="Columns as name:type, separated by commas.")
    ] = None,
    like: Annotated[Path | None, typer.Option("--like", help="Take the columns of this data file.")] = None,
    primary_key: _Key = None,
    sharding: _Sharding = "unsharded",
    merge: _Merge = None,
    allow_keys_across_shards: _AcrossShards = False,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Do nothing if the table is there.")] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Make a table with a write path in front."""
    if (columns is None) == (like is None):
        raise typer.BadParameter("give either --columns or --like", param_hint="--columns")
    schema = _schema(columns) if columns is not None else DataFile(like or Path()).schema
    table = create_table(
        uri,
        schema,
        primary_key=split_names(primary_key),
        sharding=_sharding(sharding),
        merge=_merge(merge),
        allow_keys_across_shards=allow_keys_across_shards,
        storage_options=storage_options(storage_option),
        exist_ok=exist_ok,
    )
    answer = {"table": table.uri, "columns": table.schema.names, "primary_key": table.primary_key}
    rules = {"sharding": str(table.sharding), "merge": text_of_merge(table.merge)}
    show({**answer, **rules, "version": int(table.dataset.version)}, as_json=json)


def enable(
    uri: Uri,
    primary_key: _Key = None,
    sharding: _Sharding = "unsharded",
    merge: _Merge = None,
    allow_keys_across_shards: _AcrossShards = False,
    adopt_shards: Annotated[
        bool, typer.Option("--adopt-shards", help="Take over what shards hold that an earlier write path left behind.")
    ] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Put a write path in front of an existing Lance table."""
    table = enable_table(
        uri,
        primary_key=split_names(primary_key),
        sharding=_sharding(sharding),
        merge=_merge(merge),
        allow_keys_across_shards=allow_keys_across_shards,
        adopt_shards=adopt_shards,
        storage_options=storage_options(storage_option),
    )
    rules = {"sharding": str(table.sharding), "merge": text_of_merge(table.merge)}
    show({"table": table.uri, "primary_key": table.primary_key, **rules}, as_json=json)


def put(
    uri: Uri,
    files: Annotated[
        list[Path],
        typer.Argument(help="Parquet, CSV, JSON lines or Arrow files; - is standard input.", show_default=False),
    ],
    kind: Annotated[
        Format | None, typer.Option("--format", help="What the files hold, if their names do not say it.")
    ] = None,
    batch_rows: Annotated[int, typer.Option(help="Rows per put: each is durable when it returns.", min=1)] = 8192,
    fsync: Annotated[bool, typer.Option(help="Survive power loss (local paths).")] = True,
    missing: _Missing = None,
    shard: Shard = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Insert or replace the rows of data files.

    The shards that the rows go to are taken over: a writer that is at work on them is fenced.
    """
    table = open_for(uri, storage_option)
    inputs = [DataFile(path, table.schema, kind) for path in files]
    started, total = SYSTEM_CLOCK.monotonic(), sum(file.size_bytes for file in inputs)
    rows, unknown = 0, 0  # rows that are durable; rows of a put whose outcome is unknown
    say_taken_over(table)
    try:
        with (
            table.writer(fsync=fsync, **shard_for_writing(table, shard)) as writer,
            file_bar("put", total, hidden=json) as told,
        ):
            try:
                for file in inputs:
                    for batch in file.batches(batch_rows):
                        with interrupted_after():
                            unknown = batch.num_rows
                            writer.put(batch, missing=missing)
                            rows, unknown = rows + batch.num_rows, 0
                        told(sum(item.done_bytes for item in inputs), rows)
            except KeyboardInterrupt:
                if unknown:  # an interrupted commit stops the writer: a close would raise that instead
                    writer.abort()
                raise
    except MemWalError as error:
        if rows:
            error.add_note(f"{rows:,} rows were durable before that")
        raise
    except KeyboardInterrupt:
        more = f", and up to {unknown:,} more may be" if unknown else ""
        note(f"stopped: {rows:,} rows are in, and durable{more}; put the same files again to write the rest")
        raise
    seconds = SYSTEM_CLOCK.monotonic() - started
    figures = {"rows": rows, "seconds": round(seconds, 3), "rows_per_second": round(rows / max(seconds, 1e-9))}
    show(figures, as_json=json)


@contextmanager
def interrupted_after() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, so that its outcome is known. A second Ctrl-C interrupts the block."""
    delayed: list[int] = []

    def delay(number: int, frame: FrameType | None) -> None:
        if delayed:
            signal.default_int_handler(number, frame)
        delayed.append(number)

    previous = signal.signal(signal.SIGINT, delay)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if delayed:
        raise KeyboardInterrupt


def say_taken_over(table: Table) -> None:
    """Tell of shards whose writer seems to be at work, before it is fenced."""
    tag = newest_base(table).tag
    for manifest in newest_manifests(table.location):
        if not may_be_claimed(table.location, manifest, idle_seconds=_AT_WORK_SECONDS, tag=tag):
            note(
                f"shard {manifest.shard_id} has a writer that seems to be at work: it is taken over, and that writer stops"
            )


def update(
    uri: Uri,
    where: Annotated[str, typer.Option("--where", "-w", help="The rows for which this SQL filter is true.")],
    values: Annotated[
        list[str],
        typer.Option("--set", help="column=expression, in SQL over the columns of the row; repeatable."),
    ],
    shard: Shard = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Set columns of all rows for which a filter is true.

    The shards of the rows are taken over: a writer that is at work on them is fenced.
    """
    settings = {}
    for text in values:
        name, equals, expression = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{text!r}: give column=expression", param_hint="--set")
        settings[name.strip()] = expression.strip()
    table = open_for(uri, storage_option)
    say_taken_over(table)
    with table.writer(**shard_for_writing(table, shard)) as writer:
        show({"updated_rows": writer.update(where=where, set=settings).matched}, as_json=json)


def delete(
    uri: Uri,
    keys: Annotated[list[str] | None, typer.Argument(help="Keys; JSON arrays for composite ones.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A data file that holds the key columns.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", "-w", help="All rows for which this SQL filter is true.")
    ] = None,
    sequence: Annotated[
        str | None, typer.Option("--sequence", help="The sequence of the delete, on a table with --merge last-write.")
    ] = None,
    shard: Shard = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Delete rows by key, or by a filter.

    The shards of the keys are taken over: a writer that is at work on them is fenced.
    """
    if sum([bool(keys or file is not None), where is not None]) != 1:
        raise typer.BadParameter("give keys or --file, or --where", param_hint="keys")
    table = open_for(uri, storage_option)
    at = None if sequence is None else sequence_of(table, sequence)
    if keys and at is None and isinstance(table.merge, LastWrite):
        raise InvalidInputError("the table puts its rows in order: say which delete is the later one with --sequence")
    say_taken_over(table)
    if where is not None:
        with table.writer(**shard_for_writing(table, shard)) as writer:
            show({"deleted_rows": writer.delete(where=where, sequence=at).matched}, as_json=json)
        return
    named = [key_of(table, key) for key in keys or ()]
    source = None if file is None else DataFile(file, table.schema)
    count = 0
    with table.writer(**shard_for_writing(table, shard)) as writer:
        if named:
            writer.delete(named, sequence=at)
            count += len(named)
        if source is not None:
            with file_bar("delete", source.size_bytes, hidden=json) as told:
                for batch in source.batches(8192):
                    missing = [name for name in table.primary_key if name not in batch.schema.names]
                    if missing:
                        raise InvalidInputError(f"{file} has no key column {missing[0]!r}")
                    writer.delete(batch, sequence=at)
                    count += batch.num_rows
                    told(source.done_bytes, count)
    show({"deleted_keys": count}, as_json=json)
