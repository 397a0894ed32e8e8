"""A table beside a plain model of it: what maintenance tests write, and what they compare with."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.manifest import data_path, deletion_path
from lance_memwal.store.location import resolve

KINDS = ("key", "composite", "text", "merge", "stable", "append", "append_stable")
SHARDS = 2


def schema_of(kind: str) -> pa.Schema:
    columns = [pa.field("id", pa.int64()), pa.field("version", pa.int64()), pa.field("note", pa.string())]
    if kind == "composite":
        columns.insert(1, pa.field("region", pa.string()))
    if kind == "text":
        columns[0] = pa.field("id", pa.string())
    return pa.schema(columns)


def with_key(schema: pa.Schema) -> pa.Schema:
    """`schema` with its first column as primary key."""
    key = schema.field(0).with_nullable(False).with_metadata({"lance-schema:unenforced-primary-key": "true"})
    return schema.set(0, key)


def by_lance_only(uri: str) -> dict[str, Any]:
    """Options for a new dataset that takes no hand-made version: it may hold data files in another place."""
    return {"initial_bases": [lance.DatasetBasePath(f"{uri}-elsewhere", name="elsewhere")]}


class Kept:
    def __init__(self, place: Path, kind: str, seed: int = 0, **defaults: Any) -> None:
        self.uri = str(place)
        self.kind = kind
        self.has_key = not kind.startswith("append")
        self._draw = random.Random(seed)
        self._number = 0
        self.rows: dict[Any, dict[str, Any]] = {}
        self.appended: list[dict[str, Any]] = []
        schema = schema_of(kind)
        defaults.setdefault("fsync", False)
        if kind in ("merge", "stable", "append_stable"):
            if self.has_key:
                schema = with_key(schema)
            features: dict[str, Any] = {"enable_stable_row_ids": True} if "stable" in kind else by_lance_only(self.uri)
            lance.write_dataset(schema.empty_table(), self.uri, **features)
            self.table = mw.enable(self.uri, sharding=mw.Bucket("id", SHARDS), writer_defaults=defaults)
        else:
            key = {"composite": ["id", "region"]}.get(kind, "id") if self.has_key else None
            self.table = mw.create_table(
                self.uri, schema, primary_key=key, sharding=mw.Bucket("id", SHARDS), writer_defaults=defaults
            )

    # ------------------------------------------------------------------------------------------------------ writing

    def _key(self, number: int) -> dict[str, Any]:
        if self.kind == "composite":
            return {"id": number, "region": f"r{number % 3}"}
        return {"id": f"key-{number}" if self.kind == "text" else number}

    def _draw_rows(self, count: int) -> list[dict[str, Any]]:
        self._number += 1
        numbers = self._draw.sample(range(60), count)
        return [{**self._key(n), "version": self._number, "note": f"{n}/{self._number}"} for n in numbers]

    def write(self, writer: mw.TableWriter, puts: int = 1, rows: int = 8) -> None:
        """Some puts, and deletes where the table has a key."""
        for _ in range(puts):
            drawn = self._draw_rows(rows)
            writer.put(drawn)
            self.appended += drawn
            for row in drawn:
                self.rows[self._identity(row)] = row
            if self.has_key and self._draw.random() < 0.7:
                gone = [self._key(n) for n in self._draw.sample(range(60), 4)]
                writer.delete(pa.Table.from_pylist(gone))
                for key in gone:
                    self.rows.pop(self._identity(key), None)

    def generations(self, count: int, rows: int = 8, **options: Any) -> None:
        """That many generations per shard, by a writer that is closed again."""
        with self.table.writer(compaction=None, **options) as writer:
            for _ in range(count):
                self.write(writer, rows=rows)
                writer.flush()

    def _identity(self, row: dict[str, Any]) -> Any:
        return (row["id"], row.get("region"))

    # ------------------------------------------------------------------------------------------------------ comparing

    @property
    def expected(self) -> Counter[str]:
        """The rows that every read must show, each as often as it is there."""
        return Counter(map(repr, self.rows.values() if self.has_key else self.appended))

    def shown(self) -> Counter[str]:
        return as_rows(mw.open_table(self.uri).scan().to_table())

    def plain(self) -> Counter[str]:
        return as_rows(lance.dataset(self.uri).to_table())


def as_rows(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def unheld_files(uri: str) -> set[str]:
    """Files of the base table that no version that ever was holds; nothing was cleaned up here."""
    names: set[str] = set()
    for version in lance.dataset(uri).versions():
        base = BaseTable.open(resolve(uri), version=version["version"])
        assert base is not None
        for fragment in base.manifest.fragments():
            names |= {data_path(file.path) for file in fragment.files}
            names |= set() if fragment.deletion is None else {deletion_path(fragment.id, fragment.deletion)}
        names.add(f"_transactions/{base.manifest.transaction_file}")
    root = Path(uri)
    there = {
        str(path.relative_to(root))
        for folder in ("data", "_deletions", "_transactions")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
    return there - names
