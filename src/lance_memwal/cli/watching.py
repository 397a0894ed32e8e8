"""The command that watches a table: top.

Owns how a look at a table (`table.looking`) is shown. Invariants:

1. It only reads, and claims nothing.
2. Where standard output is no terminal there is no control character, and every look is printed below the last one.
3. A table that cannot be read is said so, and is looked at again: it may come back.
4. However many shards there are, what is shown fits the screen: the busiest come first.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lance_memwal.cli.keyboard import Keyboard
from lance_memwal.cli.options import Json, Options, Uri, open_for
from lance_memwal.cli.output import GAP, as_seconds, as_size, clean, grid, print_json
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import MemWalError
from lance_memwal.rows.text_values import to_plain
from lance_memwal.table.looking import Look, Looker
from lance_memwal.upkeep.reports import ShardStats
from lance_memwal.upkeep.stats import Rates, TableRates

_LINES_ABOVE = 10  # what is printed beside shards
_PIPE_SHARDS = 20
_DROPPED_FIRST = ("size", "rows", "bytes/s", "log size", "epoch", "last write")


def top(
    uri: Uri,
    every_seconds: Annotated[float, typer.Option(help="The time between two looks.", min=0.1)] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, for the rates, print the second look, and end.")
    ] = False,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Watch a table: rates, tiers per shard, lags, backpressure. End with q or Ctrl-C.

    It reads storage only, so it shows the work of all writers. Column "full" estimates how full the memory of the writer is: the
    bytes in the log that are in no SSTable, divided by max_unflushed_memtable_bytes. At 100% puts wait for a flush.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)
    is_live = console.is_terminal and not (once or json)
    looks = Looker(open_for(uri, storage_option))
    if once:
        looks.next()
        SYSTEM_CLOCK.sleep(every_seconds)
        _say(console, uri, looks.next(), json=json)
        return
    with _screen(console, is_live) as show, Keyboard(is_used=is_live) as keyboard:
        try:
            while True:
                try:
                    look = looks.next()
                except MemWalError as problem:
                    _say_trouble(show, uri, str(problem), every_seconds, json=json)
                else:
                    print_json(_plain(look)) if json else show(_view(uri, look, _rows_of(console), console.width))
                sys.stdout.flush()
                if keyboard.is_pressed("q", every_seconds):
                    return
        except KeyboardInterrupt:
            return  # that is how it ends


def _rows_of(console: Console) -> int:
    """How many shards fit."""
    return max(1, console.height - _LINES_ABOVE) if console.is_terminal else _PIPE_SHARDS


@contextmanager
def _screen(console: Console, is_live: bool) -> Iterator[Any]:
    if not is_live:
        yield lambda view: console.print(view)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda view: live.update(view, refresh=True)


def _say(console: Console, uri: str, look: Look, *, json: bool) -> None:
    print_json(_plain(look)) if json else console.print(_view(uri, look, _PIPE_SHARDS, console.width))


def _say_trouble(show: Any, uri: str, problem: str, every_seconds: float, *, json: bool) -> None:
    if json:
        print_json({"table": uri, "error": problem})
        return
    lines = [f"{uri} cannot be read now:", problem, f"trying again every {every_seconds:g} s; q or Ctrl-C ends"]
    show(Text("\n".join(map(clean, lines)), style="red"))


def _plain(look: Look) -> dict[str, Any]:
    return {"time_ms": look.time_ms, "stats": to_plain(look.stats), "rates": to_plain(look.rates)}


# ------------------------------------------------------------------------------------------------------------- the view


def _view(uri: str, look: Look, most: int, width: int) -> RenderableType:
    """A look as it is shown."""
    shards = look.busiest()
    names, rows = _fitted([_cells(look, shard, rates) for shard, rates in shards[:most]], width)
    more = f"and {len(shards) - most:,} more shards, less busy" if len(shards) > most else ""
    return Group(
        *map(_line, _summary(uri, look)),
        Text(),
        grid(names, rows, [name != "shard" for name in names]) if rows else _line("no shards: nothing was written yet"),
        *([_line(more)] if more else []),
    )


def _line(text: str) -> Text:
    return Text(clean(text), no_wrap=True, overflow="ellipsis")


def _summary(uri: str, look: Look) -> list[str]:
    stats, rates = look.stats, look.rates
    consumers = [
        f"{c.name} is {c.lag_entries:,} entries behind ({as_seconds(c.silent_seconds)} silent)" for c in stats.consumers
    ]
    indexes = [f"{name} waits for {count:,} SSTables" for name, count in stats.waiting_for_indexes.items() if count]
    return [
        f"{_clock_time(look.time_ms)}   {uri}   {len(stats.shards):,} shards{_asked(rates)}",
        f"base     version {stats.base_version}, {stats.base_rows:,} rows, {stats.base_fragments:,} fragments, "
        f"{as_size(stats.base_bytes)}" + ("" if rates is None else f"   {rates.base_rows:+,.0f} rows/s"),
        "written  " + (_written(rates) if rates else "rates come with the second look"),
        f"logs     {stats.wal_lag_entries:,} entries that are in no SSTable yet ({as_size(stats.wal_lag_bytes)})",
        f"SSTables {stats.uncompacted_generations:,} that the base has not yet ({stats.uncompacted_rows:,} rows, "
        f"{as_size(stats.uncompacted_bytes)}), due in {len(stats.compaction_due):,} shards",
        "behind   " + ("; ".join([*consumers, *indexes]) or "nobody"),
    ]


def _written(rates: TableRates) -> str:
    return (
        f"{rates.entries:,.1f} entries/s, {as_size(round(rates.size_bytes))}/s   {60 * rates.flushes:,.0f} flushes/min, "
        f"{60 * rates.compacted:,.0f} compacted/min" + (f", {rates.takeovers:,} takeovers" if rates.takeovers else "")
    )


def _asked(rates: TableRates | None) -> str:
    """What this view costs."""
    if rates is None:
        return ""
    cost = f", about ${3600 * rates.dollars:.2f}/h" if rates.dollars else ""
    return f"   (this view: {rates.requests:,.0f} requests/s{cost})"


def _cells(look: Look, shard: ShardStats, rates: Rates) -> dict[str, str]:
    """A shard from the log to the base table, by heading."""
    return {
        "shard": shard.shard_id,
        "epoch": f"{shard.epoch}" + (" new" if rates.takeovers else ""),
        "entries/s": f"{rates.entries:,.1f}",
        "bytes/s": as_size(round(rates.size_bytes)),
        "in log": f"{shard.wal_lag_entries:,}",
        "log size": as_size(shard.wal_lag_bytes),
        "full": _full(look, shard),
        "SSTables": f"{shard.uncompacted_generations:,}"
        + (" due" if shard.shard_id in look.stats.compaction_due else ""),
        "rows": f"{shard.uncompacted_rows:,}",
        "size": as_size(shard.uncompacted_bytes),
        "base has": f"{shard.compacted_generation} of {shard.current_generation - 1}",
        "last write": _ago(look.time_ms, shard.written_ms),
    }


def _ago(now_ms: int, then_ms: int | None) -> str:
    if then_ms is None:
        return "never"
    return "now" if now_ms - then_ms < 1000 else f"{as_seconds((now_ms - then_ms) / 1000)} ago"


def _full(look: Look, shard: ShardStats) -> str:
    """How full the memory of the writer is, estimated from the log."""
    return f"~{shard.wal_lag_bytes / look.limit_bytes:.0%}" if look.limit_bytes else "-"


def _fitted(shards: Sequence[dict[str, str]], width: int) -> tuple[list[str], list[list[str]]]:
    """Headings and rows that fit: shorter ids first, then without the columns that say least."""
    names = list(shards[0]) if shards else []
    rows = [dict(shard) for shard in shards]
    if _width_of(names, rows) > width:
        rows = [{**shard, "shard": shard["shard"][:8]} for shard in rows]
    for name in _DROPPED_FIRST:
        if name in names and _width_of(names, rows) > width:
            names.remove(name)
    return names, [[row[name] for name in names] for row in rows]


def _width_of(names: Sequence[str], rows: Sequence[dict[str, str]]) -> int:
    return sum(max(len(name), *(len(row[name]) for row in rows)) + GAP for name in names)


def _clock_time(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000).astimezone().strftime("%H:%M:%S")
