"""Commands that follow what changes: changes, consumers.

Owns no engine logic: each command is one call of the engine.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lance_memwal.cli.options import Columns, Json, Options, Uri, open_for, split_names
from lance_memwal.cli.output import as_seconds, note, print_batches, rows_as_json, rows_as_table
from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.changes import ChangeFeed
from lance_memwal.feed.consumers import Consumer
from lance_memwal.rows.plain import to_plain

__all__ = ["changes", "consumers"]

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
    net: Annotated[bool, typer.Option("--net", help="Only the last change of each key.")] = False,
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Go on where this consumer stands, and keep its place.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", help="Stop after so many changes or more.", min=1)] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print every change of the table, in order per key; says at the end where to go on."""
    if follow and (until is not None or net):
        raise InvalidInputError("--follow has no end: leave out --until and --net")
    table = open_for(uri, storage_option)
    end = None if follow else until or "now"
    names = split_names(columns)
    feed: ChangeFeed | Consumer
    if consumer is None:
        feed = table.changes(start=start or "earliest", until=end, columns=names, filter=where, before=before, net=net)
    elif net:
        raise InvalidInputError("--net and --consumer exclude each other: a consumer gets every change")
    else:
        begin = start or "snapshot"
        feed = table.consumer(consumer, start=begin, until=end, columns=names, filter=where, before=before)
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
        table.drop_consumer(drop)
        note(f"dropped the consumer {drop}")
        return
    found = [to_plain(info) for info in table.consumers()]
    if json:
        rows_as_json(found)
        return
    for info in found:
        info |= {"silent": as_seconds(info["silent_seconds"]), "may_be_silent": as_seconds(info["max_age_seconds"])}
    rows_as_table(found, _CONSUMERS)
    if not found:
        note("no consumers: nobody follows this table by name")
