"""Commands that read rows and changes: scan, get, search; snapshot, diff and checkpoints; changes and consumers.

Owns no engine logic: each command is one call of the facade.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import typer

from lance_memwal.cli.files import Format, write_rows
from lance_memwal.cli.options import At, Columns, Json, Options, Uri, as_of, key_of, open_for, split_names
from lance_memwal.cli.output import (
    as_seconds,
    note,
    print_batches,
    print_bytes,
    print_json,
    print_row,
    rows_as_json,
    rows_as_table,
    show,
)
from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.changes import ChangeFeed
from lance_memwal.feed.checkpoints import Checkpoint
from lance_memwal.feed.consumers import Consumer
from lance_memwal.rows.text_values import to_plain, typed_range, typed_vector

_T = TypeVar("_T")

_SHOWN_ROWS = 20
_Filter = Annotated[str | None, typer.Option("--filter", "-f", help="A condition in Lance's SQL.")]


def scan(
    uri: Uri,
    columns: Columns = None,
    filter: _Filter = None,  # noqa: A002
    order_by: Annotated[
        str | None,
        typer.Option("--order-by", help="Columns, separated by commas; -name puts the largest first."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Rows (default: 20, with --json all).")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="No limit.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what would be read.")] = False,
    flushed: Annotated[bool, typer.Option("--flushed", help="Leave out what is only in logs and memory.")] = False,
    kind: Annotated[
        Format | None, typer.Option("--format", help="Write all rows as such a file, to standard output.")
    ] = None,
    at: At = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print the live rows of all tiers."""
    if kind is not None and (json or count or explain):
        raise typer.BadParameter("it is for rows: leave out --json, --count and --explain", param_hint="--format")
    if flushed and at is not None:
        raise typer.BadParameter("a moment has logs, too: leave it out, or --at", param_hint="--flushed")
    table = as_of(open_for(uri, storage_option), at)
    options: dict[str, Any] = {"consistency": "flushed"} if flushed else {}
    rows = None if everything or count else limit
    cut = _SHOWN_ROWS if rows is None and not (everything or count or json or kind) else None
    found = table.scan(
        split_names(columns),
        filter,
        rows if cut is None or explain else cut + 1,  # one more than is shown tells whether there are more
        order_by=split_names(order_by),
        **options,
    )
    if explain:
        print_json({"plan": found.explain()}) if json else print(found.explain())
    elif count:
        show({"rows": found.count_rows()}, as_json=json)
    elif kind is not None:
        write_rows(found.to_batches(), found.schema, kind)
    elif cut is not None:
        read = found.to_table()
        shown = print_batches(read.slice(0, cut).to_batches(), found.schema.names, as_json=False)
        note(f"the first {shown} rows; --all shows all, -n another number" if read.num_rows > cut else _rows(shown))
    else:
        shown = print_batches(found.to_batches(), found.schema.names, as_json=json)
        if not json:
            note(_rows(shown))


def head(
    uri: Uri,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many rows.")] = 10,
    columns: Columns = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print the first rows that come."""
    found = open_for(uri, storage_option).scan(split_names(columns), limit=limit)
    shown = print_batches(found.to_batches(), found.schema.names, as_json=json)
    if not json:
        note(_rows(shown))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def get(
    uri: Uri,
    key: str,
    columns: Columns = None,
    blob: Annotated[
        str | None, typer.Option("--blob", help="Write the bytes of this blob column to standard output instead.")
    ] = None,
    at: At = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print the row of one key; exit status 1 if there is none.

    A key of several columns is a JSON array or object. A blob column shows the size of the blob.
    """
    table = open_for(uri, storage_option)
    then = as_of(table, at)
    if blob is not None:
        file = then.get_blob(key_of(table, key), blob)
        if file is None:
            raise InvalidInputError(f"there is no row with key {key}, or its {blob!r} is null")
        print_bytes(file)
        return
    row = then.get(key_of(table, key), split_names(columns))
    if row is None:
        raise InvalidInputError(f"there is no row with key {key}")
    print_row(row, as_json=json)


def search(
    uri: Uri,
    text: Annotated[str | None, typer.Option("--text", "-t", help="Words to find.")] = None,
    vector: Annotated[str | None, typer.Option("--vector", "-v", help="A JSON array of numbers.")] = None,
    column: Annotated[
        str | None, typer.Option("--column", help="The column to search; for text also several, separated by commas.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many rows.")] = 10,
    offset: Annotated[int, typer.Option("--offset", min=0, help="How many of the best to leave out.")] = 0,
    distance_range: Annotated[
        str | None,
        typer.Option("--distance-range", metavar="FROM:TO", help="Only such distances; either side may be left out."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="l2, cosine, dot or hamming, if not that of the index.")
    ] = None,
    filter: _Filter = None,  # noqa: A002
    columns: Columns = None,
    at: At = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Find rows by text, by vector, or by both; the best come first."""
    if text is None and vector is None:
        raise typer.BadParameter("give --text, --vector or both", param_hint="--text")
    query = _given(typed_vector, vector, "--vector")
    bounds = _given(typed_range, distance_range, "--distance-range")
    table = as_of(open_for(uri, storage_option), at)
    found = table.search(
        vector=query,
        text=text,
        column=split_names(column),
        k=k,
        offset=offset,
        distance_range=bounds,
        filter=filter,
        columns=split_names(columns),
        metric=metric,  # type: ignore[arg-type]  # the search says which there are
    )
    shown = print_batches(found.to_batches(), found.schema.names, as_json=json)
    if not json:
        note(_rows(shown))


def _given(read: Callable[[str], _T], text: str | None, hint: str) -> _T | None:
    """What somebody typed for an option; None if nothing."""
    try:
        return None if text is None else read(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


# ------------------------------------------------------------------------------------------------------------ moments


checkpoints = typer.Typer(help="Moments that are kept by name: list, create, drop.", no_args_is_help=True)
_HEADINGS = {"name": "name", "created": "created", "expires": "expires", "base_version": "base version"}
_Name = Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'.", show_default=False)]
_Moment = Annotated[
    str, typer.Argument(help="A snapshot, a checkpoint, a time with a zone, or a base version.", show_default=False)
]


def snapshot(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Print this moment as a text, which --at and diff take while collection keeps what it needs."""
    text = str(open_for(uri, storage_option).snapshot())
    print_json({"snapshot": text}) if json else print(text)


def diff(
    uri: Uri,
    a: _Moment,
    b: _Moment,
    before: Annotated[bool, typer.Option("--before", help="Also the rows that were updated, as they were.")] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print what changed from one moment to another, net: one row per key, with _op."""
    found = open_for(uri, storage_option).diff(a, b, before=before)
    shown = print_batches(found.to_batches(), found.schema.names, as_json=json)
    if not json:
        note("1 row" if shown == 1 else f"{shown:,} rows")


@checkpoints.command("list")
def list_checkpoints(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Print the checkpoints of a table."""
    found = [_plain(checkpoint) for checkpoint in open_for(uri, storage_option).checkpoints.list()]
    if json:
        for item in found:
            print_json(item)
    else:
        rows_as_table(found, _HEADINGS)


@checkpoints.command("create")
def create_checkpoint(
    uri: Uri,
    name: _Name,
    lifetime_days: Annotated[
        float | None, typer.Option(help="Let it end after so many days; it stays until it is dropped otherwise.")
    ] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Keep this moment under a name: collection and clean-up leave what it needs."""
    lifetime = None if lifetime_days is None else timedelta(days=lifetime_days)
    show(_plain(open_for(uri, storage_option).checkpoints.create(name, lifetime=lifetime)), as_json=json)


@checkpoints.command("drop")
def drop_checkpoint(uri: Uri, name: _Name, storage_option: Options = None, json: Json = False) -> None:
    """Forget a checkpoint: collection may have what only it needs."""
    open_for(uri, storage_option).checkpoints.drop(name)
    show({"dropped": name}, as_json=json)


def _plain(checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "name": checkpoint.name,
        "created": to_plain(checkpoint.created),
        "expires": to_plain(checkpoint.expires),
        "base_version": checkpoint.snapshot.base_version,
        "snapshot": str(checkpoint.snapshot),
    }


# ---------------------------------------------------------------------------------------------------------- following


_CONSUMERS = {
    "name": "consumer",
    "state": "state",
    "lag_entries": "entries behind",
    "silent": "silent",
    "may_be_silent": "may be silent",
}
_Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        help="earliest (default), latest, snapshot (all live rows first), a cursor, a time (2026-01-31T12:00Z), a checkpoint.",
        show_default=False,
    ),
]
_Until = Annotated[
    str | None, typer.Option("--until", help="now (default), a cursor, a time, a checkpoint.", show_default=False)
]


def changes(
    uri: Uri,
    start: _Start = None,
    until: _Until = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more; stop with Ctrl-C.")] = False,
    columns: Columns = None,
    where: Annotated[str | None, typer.Option("--where", "-w", help="Only rows that match, in SQL.")] = None,
    before: Annotated[bool, typer.Option("--before", help="Show what rows were before, too.")] = False,
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Go on where this consumer stands, and keep its place.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", help="Stop after so many changes or more.", min=1)] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print every change of the table, in order per key; says at the end where to go on."""
    if follow and until is not None:
        raise InvalidInputError("--follow and --until exclude each other")
    table = open_for(uri, storage_option)
    end = None if follow else until or "now"
    names = split_names(columns)
    feed: ChangeFeed | Consumer
    if consumer is None:
        feed = table.changes(start=start or "earliest", until=end, columns=names, filter=where, before=before)
    else:
        begin = start or "snapshot"
        feed = table.consumers.open(consumer, start=begin, until=end, columns=names, filter=where, before=before)
    _print(feed, count, json=json)


def _print(feed: ChangeFeed | Consumer, count: int | None, *, json: bool) -> None:
    printed = 0
    try:
        for batch in feed:
            printed += print_batches([batch], feed.schema.names, as_json=json)
            sys.stdout.flush()
            if isinstance(feed, Consumer):
                feed.commit()
            if count is not None and printed >= count:
                break
        if isinstance(feed, Consumer):
            feed.commit()
    finally:
        note(f"{printed} changes; go on with --start '{feed.cursor}'")


def consumers(
    uri: Uri,
    drop: Annotated[str | None, typer.Option("--drop", help="Forget this consumer.")] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """List the named consumers of the table's changes with their lag, or drop one."""
    table = open_for(uri, storage_option)
    if drop is not None:
        table.consumers.drop(drop)
        note(f"dropped the consumer {drop}")
        return
    found = [to_plain(info) for info in table.consumers.list()]
    if json:
        rows_as_json(found)
        return
    for info in found:
        info |= {"silent": as_seconds(info["silent_seconds"]), "may_be_silent": as_seconds(info["max_age_seconds"])}
    rows_as_table(found, _CONSUMERS)
    if not found:
        note("no consumers: nobody follows this table by name")
