"""Commands that read rows: scan, get, search.

Owns no engine logic: each command is one call of the facade.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from lance_memwal.cli.formats import Format, write_rows
from lance_memwal.cli.options import At, Columns, Json, Options, Uri, as_of, key_of, open_for, split_names
from lance_memwal.cli.output import note, print_batches, print_bytes, print_json, print_row, show
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.typed import typed_range, typed_vector

__all__ = ["get", "head", "scan", "search"]

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
