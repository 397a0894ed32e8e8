"""Commands about time: snapshot, diff, and checkpoints (list, create, drop).

Owns no engine logic: each command is one call of the facade.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from lance_memwal.cli.options import Json, Options, Uri, open_for
from lance_memwal.cli.output import note, print_batches, print_json, rows_as_table, show
from lance_memwal.feed.checkpoints import Checkpoint
from lance_memwal.rows.plain import to_plain

__all__ = ["checkpoints", "diff", "snapshot"]

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
    found = [_plain(checkpoint) for checkpoint in open_for(uri, storage_option).checkpoints()]
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
    show(_plain(open_for(uri, storage_option).checkpoint_create(name, lifetime=lifetime)), as_json=json)


@checkpoints.command("drop")
def drop_checkpoint(uri: Uri, name: _Name, storage_option: Options = None, json: Json = False) -> None:
    """Forget a checkpoint: collection may have what only it needs."""
    open_for(uri, storage_option).checkpoint_drop(name)
    show({"dropped": name}, as_json=json)


def _plain(checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "name": checkpoint.name,
        "created": to_plain(checkpoint.created),
        "expires": to_plain(checkpoint.expires),
        "base_version": checkpoint.snapshot.base_version,
        "snapshot": str(checkpoint.snapshot),
    }
