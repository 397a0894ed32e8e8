"""Commands that read: scan, get, search, shards, stats, manifest, wal.

Owns no engine logic: each command is one call of the facade. Called by: `memwal.cli`.
"""

from __future__ import annotations

import json as json_text
from typing import Annotated, Any

import typer

from memwal.cli.options import Columns, Json, Options, Uri, key_of, open_for, split_names, storage_options
from memwal.cli.output import note, print_batches, rows_as_json, rows_as_table, show, to_plain
from memwal.errors import InvalidInputError
from memwal.manifest import ShardManifestStore
from memwal.scan.snapshot import list_shards
from memwal.store.location import resolve
from memwal.types import WalEntry
from memwal.wal import WalTailer, list_positions

__all__ = ["get", "manifest", "scan", "search", "shards", "stats", "wal"]

_Filter = Annotated[str | None, typer.Option("--filter", "-f", help="A condition in Lance's SQL.")]
_Shard = Annotated[str | None, typer.Option("--shard", help="The shard; may be left out if there is only one.")]


def scan(
    uri: Uri,
    columns: Columns = None,
    filter: _Filter = None,  # noqa: A002
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0)] = 20,
    everything: Annotated[bool, typer.Option("--all", help="No limit.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what would be read.")] = False,
    flushed: Annotated[bool, typer.Option("--flushed", help="Leave out what is only in logs and memory.")] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print the live rows of all tiers."""
    table = open_for(uri, storage_option)
    rows = None if everything or count else limit
    found = table.scan(split_names(columns), filter, rows, consistency="flushed" if flushed else "fresh")
    if explain:
        show({"plan": found.explain()}, as_json=True) if json else print(found.explain())
    elif count:
        show({"rows": found.count_rows()}, as_json=json)
    else:
        print_batches(found.to_batches(), found.schema.names, as_json=json)


def get(uri: Uri, key: str, columns: Columns = None, storage_option: Options = None, json: Json = False) -> None:
    """Print the row of one key; exit status 1 if there is none."""
    table = open_for(uri, storage_option)
    row = table.get(key_of(table, key), split_names(columns))
    if row is None:
        raise InvalidInputError(f"there is no row with key {key}")
    show(row, as_json=json)


def search(
    uri: Uri,
    text: Annotated[str | None, typer.Option("--text", "-t", help="Words to find.")] = None,
    vector: Annotated[str | None, typer.Option("--vector", "-v", help="A JSON array of numbers.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="The column to search.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many rows.")] = 10,
    filter: _Filter = None,  # noqa: A002
    columns: Columns = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Find rows by text, by vector, or by both."""
    table = open_for(uri, storage_option)
    query = None if vector is None else _vector(vector)
    found = table.search(vector=query, text=text, column=column, k=k, filter=filter, columns=split_names(columns))
    print_batches(found.to_batches(), found.schema.names, as_json=json)


def _vector(text: str) -> list[float]:
    try:
        value = json_text.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
        raise typer.BadParameter("give a JSON array of numbers", param_hint="--vector")
    return [float(item) for item in value]


def shards(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """List the shards: owner's epoch, flushed generations, what is only in the log."""
    records = [to_plain(info) for info in open_for(uri, storage_option).shards()]
    if json:
        rows_as_json(records)
        return
    for record in records:
        record["generations"] = len(record["generations"])
    rows_as_table(records, ["shard_id", "epoch", "status", "generations", "wal_tail", "bytes"], "shards")


def stats(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Sizes of all tiers and the work that is due."""
    found = open_for(uri, storage_option).stats()
    if json:
        show(found, as_json=True)
        return
    plain = to_plain(found)
    listed = plain.pop("shards")
    show(plain, as_json=False, title="table")
    columns = [
        "shard_id",
        "epoch",
        "sstables",
        "uncompacted_generations",
        "uncompacted_rows",
        "wal_lag_entries",
        "objects",
    ]
    rows_as_table(listed, columns, "shards")


def _one_shard(uri: str, shard: str | None, options: list[str] | None) -> tuple[Any, str]:
    location = resolve(uri, storage_options(options))
    if shard is not None:
        return location, shard
    found = list_shards(location)
    if len(found) == 1:
        return location, found[0]
    listed = ", ".join(found[:4]) + (" …" if len(found) > 4 else "")
    raise InvalidInputError(f"name the shard with --shard; there are {len(found)}: {listed}")


def manifest(uri: Uri, shard: _Shard = None, storage_option: Options = None, json: Json = False) -> None:
    """Print the newest manifest of a shard."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    latest = ShardManifestStore(location, shard_id).read_latest()
    if latest is None:
        raise InvalidInputError(f"shard {shard_id} has no manifest: nobody wrote to it")
    show(latest, as_json=json, title="manifest")


wal = typer.Typer(help="Look at the log of a shard.", no_args_is_help=True)


@wal.command("list")
def wal_list(uri: Uri, shard: _Shard = None, storage_option: Options = None, json: Json = False) -> None:
    """List the entries of the log."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    tailer = WalTailer(location, shard_id)
    records = [_entry(entry) for p in list_positions(location, shard_id) if (entry := tailer.read_entry(p)) is not None]
    if json:
        rows_as_json(records)
    else:
        rows_as_table(records, list(records[0]) if records else ["position"], f"log of {shard_id}")


@wal.command("show")
def wal_show(uri: Uri, position: int, shard: _Shard = None, storage_option: Options = None, json: Json = False) -> None:
    """Print the rows of one entry."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    entry = WalTailer(location, shard_id).read_entry(position)
    if entry is None:
        raise InvalidInputError(f"the log of shard {shard_id} ends before position {position}")
    if not json:
        show(_entry(entry), as_json=False, title=f"entry {position}")
    names = entry.batches[0].schema.names if entry.batches else []
    print_batches(entry.batches, names, as_json=json)


@wal.command("follow")
def wal_follow(
    uri: Uri,
    shard: _Shard = None,
    start: Annotated[int | None, typer.Option("--from", help="First position (default: the next one).")] = None,
    count: Annotated[int | None, typer.Option("--count", help="Stop after so many entries.", min=1)] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print entries as they come; stop with Ctrl-C."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    tailer = WalTailer(location, shard_id)
    first = tailer.next_position() if start is None else start
    note(f"following shard {shard_id} from position {first}")
    for number, entry in enumerate(tailer.follow(first), 1):
        record = _entry(entry)
        line = " ".join(f"{name}={value}" for name, value in record.items() if value not in (None, False))
        print(json_text.dumps(record) if json else line, flush=True)
        if count is not None and number >= count:
            return


def _entry(entry: WalEntry) -> dict[str, Any]:
    return {
        "position": entry.position,
        "epoch": entry.writer_epoch,
        "generation": entry.generation,
        "batches": len(entry.batches),
        "rows": entry.num_rows,
        "bytes": entry.size_bytes,
        "sentinel": entry.is_sentinel,
        "transaction": None if entry.txn is None else f"{entry.txn.app}:{entry.txn.version}",
    }
