"""Tables with a history beside a model of them, and the distributed compactor with tasks that run in line."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.compact.reports import CompactionReport
from lance_memwal.lance.base import BaseTable
from lance_memwal.spark.distributed import distributed_compactor
from lance_memwal.spark.stages import Job
from lance_memwal.store.location import resolve

KINDS = ("number", "text", "composite", "append")
SHARDS = 3
KEYS = 80


def schema_of(kind: str) -> pa.Schema:
    key = pa.string() if kind == "text" else pa.int64()
    columns = [pa.field("id", key), pa.field("v", pa.int64()), pa.field("note", pa.string())]
    if kind == "composite":
        columns.insert(1, pa.field("region", pa.string()))
    return pa.schema(columns)


class Story:
    """A table of one kind, and the rows that it must show."""

    def __init__(self, place: Path, kind: str, seed: int = 0, **options: Any) -> None:
        self.uri = str(place)
        self.kind = kind
        self.has_key = kind != "append"
        self._draw = random.Random(seed)
        self._step = 0
        self.rows: dict[Any, dict[str, Any]] = {}
        self.appended: list[dict[str, Any]] = []
        key = {"composite": ["id", "region"], "append": None}.get(kind, "id")
        options.setdefault("sharding", mw.Bucket("id", SHARDS))
        options.setdefault("writer_defaults", {"fsync": False})
        self.table = mw.create_table(self.uri, schema_of(kind), primary_key=key, **options)

    # ------------------------------------------------------------------------------------------------------- writing

    def _key(self, number: int) -> dict[str, Any]:
        if self.kind == "composite":
            return {"id": number, "region": f"r{number % 4}"}
        return {"id": f"key-{number}" if self.kind == "text" else number}

    def _rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        self._step += 1
        return [{**self._key(n), "v": self._step, "note": f"{n}/{self._step}"} for n in numbers]

    def _remember(self, rows: Sequence[dict[str, Any]]) -> None:
        self.appended += rows
        self.rows |= {repr(self._identity(row)): row for row in rows}

    def _identity(self, row: dict[str, Any]) -> Any:
        return (row["id"], row.get("region"))

    def base(self, numbers: Sequence[int] = range(KEYS), rows_per_file: int = 16) -> None:
        """Rows that are in the base table by Lance alone."""
        rows = self._rows(numbers)
        data = pa.Table.from_pylist(rows, schema=lance.dataset(self.uri).schema)
        lance.write_dataset(data, self.uri, mode="append", max_rows_per_file=rows_per_file)
        self._remember(rows)

    def base_deletes(self, numbers: Sequence[int]) -> None:
        """Deletion vectors that are there before a compaction."""
        wanted = {repr(self._identity(self._key(n))) for n in numbers}
        for key in wanted:
            self.rows.pop(key, None)
        self.appended = [row for row in self.appended if repr(self._identity(row)) not in wanted]
        names = ", ".join(repr(self._key(n)["id"]) for n in numbers)
        lance.dataset(self.uri).delete(f"id IN ({names})")

    def put(self, writer: mw.TableWriter, numbers: Sequence[int]) -> None:
        rows = self._rows(numbers)
        writer.put(rows)
        self._remember(rows)

    def delete(self, writer: mw.TableWriter, numbers: Sequence[int]) -> None:
        keys = [self._key(n) for n in numbers]
        writer.delete(pa.Table.from_pylist(keys))
        for key in keys:
            self.rows.pop(repr(self._identity(key)), None)

    def generations(self, count: int, rows: int = 12) -> None:
        """That many generations per shard, with upserts of old and new keys and with deletes."""
        with self.table.writer(compaction=None) as writer:
            for _ in range(count):
                self.put(writer, self._draw.sample(range(KEYS + 20), rows))
                if self.has_key:
                    self.delete(writer, self._draw.sample(range(KEYS + 20), rows // 3))
                writer.flush()

    # ------------------------------------------------------------------------------------------------------ comparing

    @property
    def expected(self) -> Counter[str]:
        return Counter(map(repr, self.rows.values() if self.has_key else self.appended))

    def shown(self) -> Counter[str]:
        return as_rows(mw.open_table(self.uri).scan().to_table())

    def plain(self) -> Counter[str]:
        return as_rows(lance.dataset(self.uri).to_table())

    def check(self) -> None:
        """Merged reads and plain Lance show the model, and every invariant holds."""
        assert self.shown() == self.expected
        assert self.plain() == self.expected
        assert mw.open_table(self.uri).verify().problems == []
        lance.dataset(self.uri).validate()
        assert staged(self.uri) == []

    def twin(self, place: Path) -> mw.Table:
        """The same table, bytes and all, somewhere else."""
        shutil.copytree(self.uri, place)
        return mw.open_table(str(place))


def as_rows(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def staged(uri: str) -> list[str]:
    place = Path(uri, "memwal_stage")
    return sorted(path.name for path in place.rglob("*") if path.is_file()) if place.exists() else []


class Tasks:
    """Runs tasks in line, each `attempts` times, and remembers them."""

    def __init__(self, attempts: int = 1) -> None:
        self._attempts = attempts
        self.calls: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], work: Callable[[str], str]) -> list[str]:
        self.calls.append(list(arguments))
        return [[work(argument) for _ in range(self._attempts)][-1] for argument in arguments]


def compact_by_tasks(
    uri: str, tasks: Tasks | None = None, *, memory_bytes: int = 1 << 20, fsync: bool = False, **options: Any
) -> CompactionReport:
    """What `lance_memwal.spark.compact(mode="distributed")` does, without Spark between driver and tasks."""
    location = resolve(uri)
    job = Job(uri, "0a" * 16, memory_bytes, fsync)
    compactor = distributed_compactor(job, tasks or Tasks(), location, lambda: BaseTable.need(location))
    return compactor.run(**options)
