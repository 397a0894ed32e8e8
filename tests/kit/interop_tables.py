"""Tables of every shape for the interop tests: their rows, and both writers behind one set of verbs.

A `Shape` is a schema with a way to make row `i` in version `v`; a `Duel` is one shard of such a table, the model of
what it must hold, and writers of ours and of the peer (pylance) that change shard and model alike.
"""

import datetime
import decimal
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner

from lance_memwal import ShardWriter
from tests.harness.shard_audit import peer_rows, peer_snapshot, stored_rows

KEY = {"lance-schema:unenforced-primary-key": "true"}
UTC = datetime.UTC
START = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)


def key(name: str, kind: pa.DataType, position: int | None = None) -> pa.Field:
    metadata = KEY if position is None else {f"{next(iter(KEY))}:position": str(position)}
    return pa.field(name, kind, nullable=False, metadata=metadata)


@dataclass(frozen=True)
class Shape:
    """A schema; the values of row `i` in version `v`; the columns to drop after the table was made."""

    name: str
    schema: pa.Schema
    row: Callable[[int, int], dict[str, Any]]
    storage: tuple[str, ...] = ("2.0", "2.1", "2.2")
    drop: tuple[str, ...] = ()
    keys: tuple[str, ...] = ("id",)


def _or_null(i: int, v: int, value: Any) -> Any:
    return None if (i + v) % 5 == 0 else value


def _scalars(i: int, v: int) -> dict[str, Any]:
    return {
        "id": i,
        "amount": _or_null(i, v, decimal.Decimal(i * 100 + v).scaleb(-2)),
        "wide": decimal.Decimal(10**30 + i).scaleb(-3),
        "at": START + datetime.timedelta(seconds=i, microseconds=v),
        "at_utc": _or_null(i, v, (START + datetime.timedelta(days=v)).replace(tzinfo=UTC)),
        "day": START.date() + datetime.timedelta(days=i),
        "clock": datetime.time(i % 24, v % 60, 1),
        "flag": _or_null(i, v, i % 2 == 0),
        "ratio": i + v / 8,
        "blob": bytes([i % 256, 0, v % 256]) * (i % 4),
        "large_blob": _or_null(i, v, bytes([v % 256, 255])),
        "long_text": "ü" * (i % 3) + f"row {i} v{v}",
    }


def _nested(i: int, v: int) -> dict[str, Any]:
    return {
        "id": i,
        "numbers": _or_null(i, v, [*range(i % 4), v]),
        "words": [f"w{v}", None, ""][: i % 4],
        "point": _or_null(i, v, {"x": i + 0.5, "labels": [f"l{i}", f"l{v}"], "inner": {"deep": v}}),
        "vector": [float(i), float(v), 0.5, -1.0],
        "points": [{"x": i, "y": v}] * (i % 3),
    }


def _choice(i: int, v: int) -> dict[str, Any]:
    return {"id": i, "colour": _or_null(i, v, ("red", "green", "blue")[(i + v) % 3]), "version": v}


def _strict_inside(i: int, v: int) -> dict[str, Any]:
    return {
        "id": i,
        "tagged": {"tag": ("red", "green", "blue")[(i + v) % 3], "size": v},
        "pair": _or_null(i, v, {"left": i, "words": [f"w{v}"] * (i % 3)}),
        "vector": [float(i), float(v)],
    }


def _map(i: int, v: int) -> dict[str, Any]:
    return {"id": i, "tags": _or_null(i, v, [(f"k{n}", v) for n in range(i % 3)])}


def _not_null(i: int, v: int) -> dict[str, Any]:
    return {"id": i, "name": f"name {i}", "size": v, "at": START + datetime.timedelta(seconds=v), "vector": [0.5, i]}


def _composite(i: int, v: int) -> dict[str, Any]:
    return {
        "note": f"v{v}",
        "region": f"r\0{i % 3}",
        "id": i - 5,
        "big": 2**63 + i,
        "odd": i % 2 == 1,
        "raw": b"\0\xff",
    }


def _after_drop(i: int, v: int) -> dict[str, Any]:
    return {"id": i, "kept": f"v{v}", "pair": {"b": v}, "last": _or_null(i, v, float(v))}


def _plain(kind: Callable[[int], Any]) -> Callable[[int, int], dict[str, Any]]:
    return lambda i, v: {"id": kind(i), "version": v, "note": _or_null(i, v, f"{i}/{v}")}


def _plain_schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([key("id", kind), ("version", pa.int64()), ("note", pa.string())])


def _strict(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_LISTS = {
    "numbers": pa.list_(pa.int64()),
    "words": pa.large_list(pa.string()),
    "vector": pa.list_(pa.float32(), 4),
}
SHAPES = [
    Shape(
        "scalars",
        pa.schema(
            [
                key("id", pa.int64()),
                ("amount", pa.decimal128(12, 2)),
                ("wide", pa.decimal256(50, 3)),
                ("at", pa.timestamp("us")),
                ("at_utc", pa.timestamp("us", tz="UTC")),
                ("day", pa.date32()),
                ("clock", pa.time64("us")),
                ("flag", pa.bool_()),
                ("ratio", pa.float32()),
                ("blob", pa.binary()),
                ("large_blob", pa.large_binary()),
                ("long_text", pa.large_string()),
            ]
        ),
        _scalars,
    ),
    Shape(
        "nested",
        pa.schema(
            [
                key("id", pa.int32()),
                *(_LISTS.items()),
                (
                    "point",
                    pa.struct(
                        [
                            ("x", pa.float64()),
                            ("labels", pa.list_(pa.string())),
                            ("inner", pa.struct([("deep", pa.int16())])),
                        ]
                    ),
                ),
                ("points", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.int32())]))),
            ]
        ),
        _nested,
        ("2.1", "2.2"),  # 2.0 files hold no null structs, which tombstones need
    ),
    Shape(
        "lists",
        pa.schema([key("id", pa.int32()), *(_LISTS.items())]),
        lambda i, v: {name: value for name, value in _nested(i, v).items() if name in {"id", *_LISTS}},
    ),
    Shape(
        "dictionary",
        pa.schema([key("id", pa.int64()), ("colour", pa.dictionary(pa.int32(), pa.string())), ("version", pa.int8())]),
        _choice,
    ),
    Shape(
        "strict inside",
        pa.schema(
            [
                key("id", pa.int64()),
                pa.field(
                    "tagged", pa.struct([_strict("tag", pa.dictionary(pa.int8(), pa.string())), ("size", pa.int32())])
                ),
                pa.field(
                    "pair",
                    pa.struct([_strict("left", pa.int64()), _strict("words", pa.list_(_strict("item", pa.string())))]),
                ),
                pa.field("vector", pa.list_(_strict("item", pa.float32()), 2)),
            ]
        ),
        _strict_inside,
        ("2.1", "2.2"),
    ),
    Shape("map", pa.schema([key("id", pa.int64()), ("tags", pa.map_(pa.string(), pa.int64()))]), _map, ("2.2",)),
    Shape(
        "not null",
        pa.schema(
            [
                key("id", pa.int64()),
                pa.field("name", pa.string(), nullable=False),
                pa.field("size", pa.int32(), nullable=False),
                pa.field("at", pa.timestamp("ms", tz="UTC"), nullable=False),
                pa.field("vector", pa.list_(pa.float32(), 2), nullable=False),
            ]
        ),
        lambda i, v: _not_null(i, v) | {"at": START.replace(tzinfo=UTC, microsecond=v * 1000)},
    ),
    Shape(
        "composite key",
        pa.schema(
            [
                ("note", pa.string()),
                key("id", pa.int32(), 2),
                key("region", pa.string(), 1),
                key("big", pa.uint64(), 3),
                key("odd", pa.bool_(), 4),
                key("raw", pa.binary(), 5),
            ]
        ),
        _composite,
        keys=("region", "id", "big", "odd", "raw"),
    ),
    Shape(
        "dropped columns",
        pa.schema(
            [
                key("id", pa.int64()),
                ("gone", pa.string()),
                ("kept", pa.string()),
                ("gone_too", pa.struct([("a", pa.int32()), ("b", pa.int32())])),
                ("pair", pa.struct([("b", pa.int32())])),
                ("last", pa.float64()),
            ]
        ),
        _after_drop,
        ("2.1", "2.2"),
        drop=("gone", "gone_too"),
    ),
    Shape(
        "dropped column",
        pa.schema([key("id", pa.int64()), ("gone", pa.string()), ("version", pa.int64()), ("note", pa.string())]),
        _plain(int),
        drop=("gone",),
    ),
    *(
        Shape(f"{kind} key", _plain_schema(kind), _plain(make), ("2.1",))
        for kind, make in [
            (pa.int8(), lambda i: i - 64),
            (pa.uint64(), lambda i: 2**64 - 1 - i),
            (pa.string(), lambda i: f"key {i}"),
            (pa.large_string(), lambda i: "é" * (i % 5) + str(i)),
            (pa.binary(), lambda i: bytes([i % 256, 0, 255])),
            (pa.large_binary(), lambda i: bytes([i % 256]) * 3),
        ]
    ),
]
APPEND = Shape(
    "append-only", pa.schema([("id", pa.int64()), ("note", pa.string())]), lambda i, v: {"id": i, "note": f"{v}"}
)
CASES = [(shape, storage) for shape in SHAPES for storage in shape.storage]
NAMES = [f"{shape.name} {storage}" for shape, storage in CASES]


class Duel:
    """One shard of a table of one shape, and what it must hold."""

    def __init__(self, directory: Path, shape: Shape, storage: str = "2.1", *, base_rows: int = 3) -> None:
        self.shape = shape
        self.uri = str(directory / "table")
        self.shard_id = str(uuid.uuid4())
        self.model: dict[Any, dict[str, Any]] = {}
        full = dict.fromkeys(shape.drop)
        rows = [full | shape.row(i, 0) for i in range(base_rows)]
        dataset = lance.write_dataset(
            pa.Table.from_pylist(rows, schema=shape.schema), self.uri, data_storage_version=storage
        )
        if shape.drop:
            dataset.drop_columns(list(shape.drop))
        lance.dataset(self.uri).initialize_mem_wal()
        self.schema: pa.Schema = lance.dataset(self.uri).schema
        for i in range(base_rows):
            self._remember(shape.row(i, 0))

    # ---------------------------------------------------------------------------------------------------- the model

    @property
    def has_key(self) -> bool:
        return any(field.metadata for field in self.shape.schema)

    def _key(self, row: dict[str, Any]) -> Any:
        return tuple(row[name] for name in self.shape.keys) if self.has_key else len(self.model)

    def _remember(self, row: dict[str, Any]) -> None:
        self.model[self._key(row)] = row

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What every reader must show, in a fixed order."""
        return in_order(pa.Table.from_pylist(list(self.model.values()), schema=self.schema))

    # ----------------------------------------------------------------------------------------------------- writing

    def ours(self, **settings: Any) -> ShardWriter:
        return ShardWriter.open(self.uri, shard_id=self.shard_id, **({"fsync": False} | settings))

    def peer(self, **settings: Any) -> Any:
        """The peer's writer, durable without waiting for its timer."""
        fast = {"durable_write": True, "max_wal_buffer_size": 1}
        return lance.dataset(self.uri).mem_wal_writer(self.shard_id, **(fast | settings))

    def table(self, numbers: Sequence[int], version: int) -> pa.Table:
        return pa.Table.from_pylist([self.shape.row(i, version) for i in numbers], schema=self.schema)

    def put(self, writer: Any, numbers: Sequence[int], version: int) -> None:
        writer.put(self.table(numbers, version))
        for i in numbers:
            self._remember(self.shape.row(i, version))

    def delete(self, writer: Any, numbers: Sequence[int]) -> None:
        fields = pa.schema([self.schema.field(name) for name in self.shape.keys])
        rows = [{name: self.shape.row(i, 0)[name] for name in self.shape.keys} for i in numbers]
        writer.delete(pa.Table.from_pylist(rows, schema=fields))
        for row in rows:
            self.model.pop(self._key(row), None)

    def write_some(self, writer: Any, version: int) -> None:
        """A little of everything: new rows, newer versions, deletes, a delete and a return."""
        self.put(writer, range(2, 12), version)
        self.put(writer, [4, 5, 5], version + 1)
        if self.has_key:
            self.delete(writer, [0, 6, 7, 100])
            self.put(writer, [7, 30 + version], version + 2)

    def write_at_random(self, writer: Any, draw: random.Random, count: int, version: int) -> None:
        for step in range(count):
            numbers = draw.sample(range(40), draw.choice((1, 2, 5)))
            if draw.random() < 0.25 and self.has_key:
                self.delete(writer, numbers)
            else:
                self.put(writer, numbers, version + step)

    # ----------------------------------------------------------------------------------------------------- reading

    def peer_rows(self) -> list[dict[str, Any]]:
        return in_order(peer_rows(self.uri, self.shard_id, self.schema.names))

    def stored_rows(self) -> list[dict[str, Any]]:
        return in_order(stored_rows(self.uri, self.shard_id))

    def our_rows(self, writer: ShardWriter) -> list[dict[str, Any]]:
        return in_order(writer.scan().to_table())

    def peer_lookups(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The rows that the peer finds by key, one lookup each."""
        planner = LsmPointLookupPlanner(lance.dataset(self.uri), [peer_snapshot(self.uri, self.shard_id)])
        found = [planner.plan_lookup(self._lookup_value(i)).to_table().select(self.schema.names) for i in numbers]
        return in_order(pa.concat_tables(found))

    def _lookup_value(self, i: int) -> pa.Array:
        row = self.shape.row(i, 0)
        columns = [pa.array([row[name]], self.schema.field(name).type) for name in self.shape.keys]
        return columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names=list(self.shape.keys))

    def of(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The model's rows of these numbers."""
        keys = [self._key(self.shape.row(i, 0)) for i in numbers]
        rows = [self.model[key] for key in keys if key in self.model]
        return in_order(pa.Table.from_pylist(rows, schema=self.schema))


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a read in a fixed order; equal rows of equal tables compare equal."""
    return sorted(table.to_pylist(), key=lambda row: repr(sorted(row.items())))
