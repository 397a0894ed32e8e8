"""Commands that look inside a table: shards, stats, manifest, and the log of a shard; demo and bench, which need a checkout.

Owns no engine logic: each command is one call of the engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, TextIO

import pyarrow as pa
import typer

import lance_memwal
from lance_memwal.cli.options import Json, Options, Uri, open_for, storage_options
from lance_memwal.cli.output import (
    note,
    print_batches,
    print_json,
    rows_as_json,
    rows_as_table,
    show,
    step_bars,
    working,
)
from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.log.shards import list_shards
from lance_memwal.log.tailer import WalTailer
from lance_memwal.rows.blobs import shown_batch, shown_field
from lance_memwal.rows.text_values import to_plain
from lance_memwal.store.location import Location, resolve
from lance_memwal.upkeep.inspect import EntryInfo, entry_info, list_entries

_Shard = Annotated[str | None, typer.Option("--shard", help="The shard; may be left out if there is only one.")]
_SHARDS = {
    "shard_id": "shard",
    "epoch": "epoch",
    "status": "status",
    "generations": "SSTables",
    "bytes": "size",
    "wal_tail": "in log",
}
_STATS = {
    "shard_id": "shard",
    "uncompacted_generations": "SSTables",
    "uncompacted_rows": "rows",
    "uncompacted_bytes": "size",
    "wal_lag_entries": "in log",
}
_ENTRIES = {
    "position": "position",
    "epoch": "epoch",
    "generation": "generation",
    "rows": "rows",
    "bytes": "size",
    "kind": "kind",
    "transaction": "transaction",
}


def shards(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """List the shards: epoch of the owner, what is flushed, entries that are only in the log."""
    records = [to_plain(info) for info in open_for(uri, storage_option).shards()]
    if json:
        rows_as_json(records)
        return
    for record in records:
        record["generations"] = len(record["generations"])
    rows_as_table(records, _SHARDS)
    if not records:
        note("no shards: nothing was written yet")


def schema(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Print the columns: name, type, whether nulls are allowed, place in the key."""
    table = open_for(uri, storage_option)
    key = table.primary_key
    records = [
        {
            "column": field.name,
            "type": str(field.type),
            "nullable": field.nullable,
            "key": key.index(field.name) + 1 if field.name in key else None,
        }
        for field in table.schema
    ]
    if json:
        rows_as_json(records)
        return
    rows_as_table(records, {"column": "column", "type": "type", "nullable": "nullable", "key": "key"})
    note(f"sharding: {table.sharding}")


def tables(
    directory: Annotated[str, typer.Argument(help="A directory or bucket that holds tables.", show_default=False)],
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """List the Lance tables of a directory, and which of them have a write path."""
    options = storage_options(storage_option)
    place = resolve(directory, options)
    if place.root_path is not None and not os.path.isdir(place.root_path):
        raise InvalidInputError(f"there is no directory {directory}")
    records = []
    for name in sorted(place.store.list_names("")):
        base = BaseTable.open(resolve(f"{directory.rstrip('/')}/{name}", options))
        if base is not None:
            records.append(
                {
                    "table": name,
                    "version": base.version,
                    "rows": int(base.dataset.count_rows()),
                    "primary_key": list(base.primary_key),
                    "write_path": base.details is not None,
                }
            )
    if json:
        rows_as_json(records)
        return
    headings = {
        "table": "table",
        "version": "version",
        "rows": "base rows",
        "primary_key": "key",
        "write_path": "write path",
    }
    rows_as_table(records, headings)
    if not records:
        note("no tables here")


def stats(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Sizes of all tiers and the work that is due."""
    found = to_plain(open_for(uri, storage_option).stats())
    del found["seen_seconds"]  # by a clock of this process alone
    if json:
        print_json(found)
        return
    listed, waiting, consumers = found.pop("shards"), found.pop("waiting_for_indexes"), found.pop("consumers")
    del found["store_calls"]  # of this command alone
    show(found, as_json=False, title="base table, and work that is due")
    print()
    rows_as_table(listed, _STATS, "not in the base table yet")
    for name, count in waiting.items():
        note(f"{count} compacted SSTables are kept until index {name} has their rows: memwal maintain")
    for consumer in consumers:
        note(f"the {consumer['state']} consumer {consumer['name']} is {consumer['lag_entries']} log entries behind")


def _one_shard(uri: str, shard: str | None, options: list[str] | None) -> tuple[Location, str]:
    location = resolve(uri, storage_options(options))
    if shard is not None:
        return location, shard
    found = list_shards(location)
    if not found:
        open_for(uri, options)  # says so if there is no table
        raise InvalidInputError("the table has no shards: nothing was written yet")
    if len(found) > 1:
        listed = ", ".join(found[:4]) + (", …" if len(found) > 4 else "")
        raise InvalidInputError(f"name one of the {len(found)} shards with --shard: {listed}")
    return location, found[0]


def manifest(uri: Uri, shard: _Shard = None, storage_option: Options = None, json: Json = False) -> None:
    """Print the newest manifest of a shard."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    latest = ShardManifestStore(location, shard_id).read_latest()
    if latest is None:
        raise InvalidInputError(f"shard {shard_id} has no manifest: nobody wrote to it")
    plain = to_plain(latest)
    if json:
        print_json(plain)
        return
    sstables = plain.pop("sstables")
    show({name: value for name, value in plain.items() if value or "unknown" not in name}, as_json=False)
    if sstables:
        print()
        headings = {
            "generation": "generation",
            "path": "SSTable",
            "physical_rows": "rows",
            "in_memory_bytes": "in memory",
        }
        rows_as_table(sstables, headings)


wal = typer.Typer(help="Look at the log of a shard: list, show, follow.", no_args_is_help=True)


@wal.command("list")
def wal_list(uri: Uri, shard: _Shard = None, storage_option: Options = None, json: Json = False) -> None:
    """List the entries of the log; exit status 1 if one is damaged or not understood."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    positions, records = list_positions(location, shard_id), list[dict[str, Any]]()
    with step_bars("entries", hidden=json) as told:
        for number, entry in enumerate(list_entries(location, shard_id, positions), 1):
            records.append(_record(entry))
            told("reading", number, len(positions))
    if json:
        rows_as_json(records)
    else:
        rows_as_table(records, _ENTRIES, f"log of shard {shard_id}")
        if not records:
            note("no entries: nobody wrote to this shard")
    damaged = [record["position"] for record in records if record["kind"] == "damaged"]
    if damaged:
        raise CorruptDataError(f"{len(damaged)} of {len(records)} entries are damaged", position=damaged[0])
    unknown = [record["position"] for record in records if record["kind"] == "not understood"]
    if unknown:
        text = f"{len(unknown)} of {len(records)} entries are not understood by this version"
        raise UnsupportedFormatError(text, position=unknown[0])


@wal.command("show")
def wal_show(uri: Uri, position: int, shard: _Shard = None, storage_option: Options = None, json: Json = False) -> None:
    """Print the rows of one entry."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    entry = WalTailer(location, shard_id).read_entry(position)
    if entry is None:
        raise InvalidInputError(f"the log of shard {shard_id} ends before position {position}")
    if not json:
        show({name: value for name, value in _record(entry_info(entry)).items() if value is not None}, as_json=False)
    if entry.batches:
        if not json:
            print()
        shown = pa.schema(map(shown_field, entry.batches[0].schema))
        batches = [shown_batch(batch, shown) for batch in entry.batches]
        print_batches(batches, shown.names, as_json=json)


@wal.command("follow")
def wal_follow(
    uri: Uri,
    shard: _Shard = None,
    start: Annotated[int | None, typer.Option("--from", help="First position (default: the next one).")] = None,
    count: Annotated[int | None, typer.Option("--count", help="Stop after so many entries.", min=1)] = None,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Print entries as they come, one line each; stop with Ctrl-C."""
    location, shard_id = _one_shard(uri, shard, storage_option)
    tailer = WalTailer(location, shard_id)
    first = tailer.next_position() if start is None else start
    note(f"following shard {shard_id} from position {first}; stop with Ctrl-C")
    for number, entry in enumerate(tailer.follow(first), 1):
        record = _record(entry_info(entry))
        if json:
            print_json(record)
        else:
            print(" ".join(f"{name}={value}" for name, value in record.items() if value is not None))
        sys.stdout.flush()
        if count is not None and number >= count:
            return


def _record(entry: EntryInfo) -> dict[str, Any]:
    if entry.error is not None:
        return {"position": entry.position, "kind": entry.kind, "error": entry.error}
    return {name: value for name, value in to_plain(entry).items() if name != "error"}


def check_store(uri: Uri, storage_option: Options = None, json: Json = False) -> None:
    """Check that tables are safe in a store.

    Creates about 1,100 small objects below the URI and deletes them. Exit status 1 if the store is not safe.
    """
    with working("checking", hidden=json):
        report = lance_memwal.check_store(uri, storage_options=storage_options(storage_option))
    if json:
        print_json(report.to_dict())
    else:
        rows_as_table(
            [{"property": name, "verdict": verdict} for name, verdict in report.verdicts.items()],
            {"property": "property", "verdict": "verdict"},
            report.uri,
        )
        show(
            {f"{kind} (median)": f"{seconds * 1000:.3g} ms" for kind, seconds in report.timings.items()}, as_json=False
        )
    if not report.ok:
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------------------------ stories


def demo(spark: Annotated[bool, typer.Option(help="Include the Spark chapter.")] = True, json: Json = False) -> None:
    """Run the demo on a temporary table (needs a checkout)."""
    raise typer.Exit(
        _run("examples/demo.py", [*([] if spark else ["--no-spark"]), *(["--json"] if json else [])], stdout=None)
    )


def bench(
    only: Annotated[str, typer.Option(help="Run only cases whose name contains this.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Use small sizes; the figures are rough.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
    json: Json = False,
) -> None:
    """Measure next to pylance's own writer (needs a checkout)."""
    options = [*(["--quick"] if quick else []), *(["--list"] if list_only else [])]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        arguments = ["benchmarks", "--only", only, *options, "--json", file.name]
        status = _run("-m", arguments, stdout=sys.stderr if json else None)
        if json:
            print(Path(file.name).read_text(encoding="utf-8"), end="")
    raise typer.Exit(status)


def _run(script: str, arguments: list[str], *, stdout: TextIO | None) -> int:
    """Run Python in the checkout, which is the current directory or the one that this package was imported from."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / "examples" / "demo.py").exists() and (root / "benchmarks" / "__main__.py").exists():
            command = [sys.executable, script, *arguments]
            return subprocess.run(command, cwd=root, stdout=stdout, check=False).returncode  # noqa: S603 (this interpreter)
    raise InvalidInputError(
        "demo and bench are not part of the installed package; run this in a checkout of the project"
    )
