"""`python -m benchmarks.cost_model`: what a table costs in requests, counted on an S3 service, and in dollars by list
prices.

Owns the operations that are counted, and the tables of `docs/cost.md`. Two counts are made at once: the metering
store counts the requests of this library, the service counts all; the difference is Lance's. Each is timed, too: it
says something where the service answers late. Rules:

1. Every figure for 1 and for 100 shards is counted. Those for 10,000 are the straight line through 10 and 100, and said to be.
2. Readers are another process: what a writer keeps in memory does not help them.
3. A figure is the second of two same calls, unless it says "first": what a process learns once is not paid for again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from benchmarks.object_store import running_service
from lance_memwal.compact.policy import CHECKS_PER_BASE_LOOK, Background
from lance_memwal.store.location import Location
from lance_memwal.store.metering import price_of
from lance_memwal.table import newest_base

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cost.md"
SHARDS = (1, 10, 100)
MANY = 10_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
POLICY = mw.CompactionPolicy()
LOOKS_PER_HOUR = 3600 / POLICY.check_interval_seconds / CHECKS_PER_BASE_LOOK
MAINTENANCES_PER_HOUR = 12
KINDS = ("put", "list", "get")
_OURS = {
    "put_new": "put",
    "put": "put",
    "list": "list",
    "list_names": "list",
    "head": "get",
    "get_range": "get",
    "get_tail": "get",
}

PUT_ONE = "put of one row, durable"
PUT_ALL = "one put with rows of every shard"
OPEN = "open a writer, first put to every shard"
GET_HERE = "get, in the process of the writer"
GET_FRESH = "get of a fresh row, in another process"
SCAN_FRESH = "scan of everything, rows in every log"
FLUSH = "flush of every shard"
COMPACT = "compaction of every shard"
GET_BASE = "get of a compacted row, in another process"
SCAN_BASE = "scan of everything, all compacted"
CHECK = "look of an idle writer at its table, every five minutes"
MAINTAIN = "`maintain()` with nothing to do"


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests of one operation by kind, as floats so that a line can be drawn through them; `ours` without Lance's."""

    all: Mapping[str, float]
    ours: Mapping[str, float]
    seconds: float = 0.0

    @property
    def dollars(self) -> float:
        """What they cost on S3; deletes are free."""
        return sum(count * price_of("s3", kind) for kind, count in self.all.items())

    def times(self, factor: float) -> Cost:
        """The same operation so many times."""
        return Cost({k: n * factor for k, n in self.all.items()}, {k: n * factor for k, n in self.ours.items()})


def _line(ten: Cost, hundred: Cost, shards: int) -> Cost:
    """The cost at `shards`, if it grows evenly from 10 to 100 and on."""

    def at(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
        steps = (shards - SHARDS[1]) / (SHARDS[2] - SHARDS[1])
        return {kind: max(0.0, a.get(kind, 0) + (b.get(kind, 0) - a.get(kind, 0)) * steps) for kind in {*a, *b}}

    return Cost(at(ten.all, hundred.all), at(ten.ours, hundred.ours))


# ---------------------------------------------------------------------------------------------------------- counting


def ours(location: Location) -> Counter[str]:
    """The requests of this library so far, in this process."""
    found = Counter[str]()
    for kind, stats in location.metrics.snapshot().items():
        found[_OURS.get(kind, kind)] += stats.count
    return found


def _between(before: Counter[str], after: Counter[str]) -> dict[str, float]:
    return {kind: after[kind] - before[kind] for kind in KINDS if after[kind] != before[kind]}


Seen = Callable[[], Counter[str]]


def count(work: Callable[[], object], location: Location, seen: Seen | None) -> Cost:
    """What one call costs; without a service that counts, only the requests of ours are known."""
    own, total = ours(location), seen() if seen else Counter[str]()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    mine = _between(own, ours(location))
    return Cost(mine if seen is None else _between(total, seen()), mine, seconds)


# ---------------------------------------------------------------------------------------------------------- operations


def make_table(uri: str, options: Mapping[str, str], shards: int) -> mw.Table:
    """An empty table with so many shards."""
    sharding = mw.Unsharded() if shards == 1 else mw.Bucket("id", shards)
    return mw.create_table(uri, SCHEMA, primary_key="id", sharding=sharding, storage_options=options)


def rows_for(table: mw.Table, shards: int) -> pa.Table:
    """One row for each shard."""
    keys = pa.record_batch({"id": pa.array(range(40 * shards), pa.int64()), "text": ["x"] * (40 * shards)}, SCHEMA)
    routed = mw.route(keys, table.sharding)
    return pa.Table.from_batches([rows.slice(0, 1) for _, rows in routed])


def count_cheap(uri: str, options: Mapping[str, str]) -> dict[str, Cost]:
    """The requests of ours for the operations that happen often, with one shard."""
    table = make_table(uri, options, 1)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "text": "first"}])
        return _often(table, writer, None)


def _often(table: mw.Table, writer: mw.TableWriter, seen: Seen | None) -> dict[str, Cost]:
    found = {
        PUT_ONE: count(lambda: writer.put([{"id": 1, "text": "again"}]), table.location, seen),
    }
    for _ in range(2):
        found[GET_HERE] = count(lambda: writer.get(1), table.location, seen)
    shards = {info.shard_id: 0 for info in table.shards()}
    background = Background(POLICY, table.location, lambda: newest_base(table), lambda: shards)
    for now in (0.0, 1e12):  # the first look of all is at the shards, a later one is not
        found[CHECK] = count(partial(background.look, POLICY, now), table.location, seen)
    return found


def measure(uri: str, options: Mapping[str, str], shards: int, seen: Seen) -> dict[str, Cost]:
    """Every operation on a table with so many shards."""
    table = make_table(uri, options, shards)
    rows = rows_for(table, shards)
    found: dict[str, Cost] = {}
    with _reader(uri, options) as ask, table.writer(compaction=None, max_open_shards=2 * shards) as writer:
        found[OPEN] = count(lambda: writer.put(rows), table.location, seen)
        found |= _often(table, writer, seen)
        found[PUT_ALL] = count(lambda: writer.put(rows), table.location, seen)
        key = rows["id"][0].as_py()
        found[GET_FRESH] = _asked(ask, seen, ("get", key))
        found[SCAN_FRESH] = _asked(ask, seen, ("scan", None))
        found[FLUSH] = count(writer.flush, table.location, seen)
        found[COMPACT] = count(table.compact, table.location, seen)
        found[GET_BASE] = _asked(ask, seen, ("get", key))
        found[SCAN_BASE] = _asked(ask, seen, ("scan", None))
        table.maintain(grace_seconds=0)
        found[MAINTAIN] = count(table.maintain, table.location, seen)
    return found


Answer = tuple[dict[str, float], float]
Ask = Callable[[tuple[str, Any]], Answer]


def _asked(ask: Ask, seen: Seen, question: tuple[str, Any]) -> Cost:
    ask(question)
    before = seen()
    mine, seconds = ask(question)
    return Cost(_between(before, seen()), mine, seconds)


@contextmanager
def _reader(uri: str, options: Mapping[str, str]) -> Iterator[Ask]:
    """A process that reads, and says how many requests of ours and seconds a read took."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_read, args=(there, uri, dict(options)), daemon=True)
    process.start()

    def ask(question: tuple[str, Any]) -> Answer:
        here.send(question)
        answer: Answer = here.recv()
        return answer

    try:
        yield ask
    finally:
        here.send(None)
        process.join()


def _read(pipe: Connection, uri: str, options: dict[str, str]) -> None:
    table: mw.Table | None = None
    while (question := pipe.recv()) is not None:
        table = table or mw.open_table(uri, storage_options=options)
        before, began = ours(table.location), time.perf_counter()
        what, key = question
        _ = table.get(key) if what == "get" else table.scan().to_table()
        seconds = time.perf_counter() - began
        pipe.send((_between(before, ours(table.location)), seconds))


# ---------------------------------------------------------------------------------------------------------- the page


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _money(dollars: float) -> str:
    if dollars == 0:
        return "0"
    return f"${dollars:,.2f}" if dollars >= 0.1 else f"${dollars:.2g}"


def _row(name: str, cost: Cost, times: float) -> str:
    counts = [_number(cost.all.get(kind, 0)) for kind in KINDS]
    of_lance = sum(cost.all.values()) - sum(cost.ours.values())
    return f"| {name} | {' | '.join(counts)} | {_number(max(of_lance, 0))} | {_money(cost.dollars * times)} |"


def operations_table(found: Mapping[str, Cost]) -> str:
    """Requests per operation, and dollars per thousand of them."""
    head = "| operation | PUT | LIST | GET, HEAD | of these by Lance | 1,000 of them |\n|---|---:|---:|---:|---:|---:|"
    return "\n".join([head, *(_row(name, cost, 1e3) for name, cost in found.items())])


def hours_table(per_size: Mapping[int, Mapping[str, Cost]]) -> str:
    """What an hour without writes costs."""
    lines = [
        "| shards | requests of an idle writer | an hour | `maintain()` every five minutes | an hour |",
        "|---:|---:|---:|---:|---:|",
    ]
    for shards, found in per_size.items():
        idle, upkeep = found[CHECK].times(LOOKS_PER_HOUR), found[MAINTAIN].times(MAINTENANCES_PER_HOUR)
        cells = [cell for cost in (idle, upkeep) for cell in (_number(sum(cost.all.values())), _money(cost.dollars))]
        lines.append(f"| {shards:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_with(text: str, tables: Mapping[str, str]) -> str:
    """The page with its tables replaced, each between its two marks."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return text


def tables_of(per_size: Mapping[int, Mapping[str, Cost]]) -> dict[str, str]:
    """The tables of the page, by the names of their marks."""
    named = {f"{shards} shards": operations_table(found) for shards, found in per_size.items()}
    return {**named, "idle hours": hours_table(per_size)}


def main(arguments: list[str] | None = None) -> int:
    """Count everything, and print or write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost_model", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--json", metavar="FILE", help="keep the counts in FILE")
    chosen = parser.parse_args(arguments)
    per_size: dict[int, dict[str, Cost]] = {}
    with running_service() as service:
        for shards in SHARDS:
            per_size[shards] = measure(service.uri(f"of-{shards}"), service.options, shards, service.seen)
    ten, hundred = per_size.pop(SHARDS[1]), per_size[SHARDS[2]]
    per_size[MANY] = {name: _line(ten[name], hundred[name], MANY) for name in ten}
    tables = tables_of(per_size)
    if chosen.json:
        kept = {
            str(n): {name: {"all": c.all, "ours": c.ours} for name, c in found.items()} for n, found in per_size.items()
        }
        Path(chosen.json).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if chosen.write:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
    print("\n\n".join(f"{name}\n{table}" for name, table in tables.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
