"""A busy life of a table, and what every read answered at some of its moments.

Owns `BusyLife`: random puts, deletes, large puts, flushes, compactions, collections, maintenance, takeovers and new columns,
on tables of several kinds; and `answers`, what one moment says through every kind of read.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw

KINDS = ("plain", "stable row ids", "blobs")
WORDS = ("red", "green", "blue", "amber", "violet", "umber", "teal", "white")
_DIMENSION = 4
_KEYS = 300
_BULK_ROWS = 80
_SETTINGS: dict[str, Any] = {"fsync": False, "max_memtable_rows": _BULK_ROWS - 20}


def make_table(uri: str, kind: str) -> mw.Table:
    """A table with an index of texts and one of vectors, in which some rows are."""
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("words", pa.string()),
        pa.field("vec", pa.list_(pa.float32(), _DIMENSION)),
    ]
    if kind == "blobs":
        fields.append(pa.field("raw", pa.large_binary(), metadata={"lance-encoding:blob": "true"}))
    schema = pa.schema(fields)
    draw = random.Random(0)
    first = pa.Table.from_pylist([_row(number, draw, kind) for number in range(0, _KEYS, 2)], schema=schema)
    dataset = lance.write_dataset(
        first,
        uri,
        enable_stable_row_ids=kind == "stable row ids",
        data_storage_version="2.1" if kind == "blobs" else None,
    )
    dataset.create_scalar_index("words", "INVERTED", name="words_idx")
    dataset.create_index("vec", "IVF_FLAT", name="vec_idx", num_partitions=2, metric="l2")
    return mw.enable(uri, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False})


def _row(number: int, draw: random.Random, kind: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": number,
        "words": " ".join(draw.choices(WORDS, k=4)) if draw.random() < 0.95 else None,
        "vec": [round(draw.uniform(-1, 1), 4) for _ in range(_DIMENSION)],
    }
    if kind == "blobs":
        row["raw"] = draw.randbytes(draw.randrange(64)) if draw.random() < 0.9 else None
    return row


# ------------------------------------------------------------------------------------------------------------- answers


def answers(view: mw.Table | mw.TableView, kind: str) -> dict[str, Any]:
    """What a moment says, in a form that can be compared."""
    rows = view.scan().to_table().sort_by("id")
    keys = list(range(0, _KEYS, 37))
    plain = [name for name in rows.schema.names if name != "raw"]
    near = view.search([0.1, -0.2, 0.3, 0.0], k=5, nprobes=2)
    found = view.search(text="amber teal", k=1000)
    said: dict[str, Any] = {
        "rows": rows.select(plain).to_pylist(),
        "count": view.count_rows("id % 3 = 0"),
        "get": [view.get(key, plain) for key in keys],
        "lookup": sorted(view.lookup(keys, ["id", "words"]).to_pylist(), key=lambda row: row["id"]),
        "near": [(row["id"], round(row["_distance"], 5)) for row in near.to_pylist()],
        "found": sorted((row["id"], round(row["_score"], 4)) for row in found.to_pylist()),
        "filtered": sorted(r["id"] for r in view.search(text="red", filter="id < 100", k=1000).to_pylist()),
    }
    if kind == "blobs":
        files = [view.get_blob(key, "raw") for key in keys]
        said["blobs"] = [None if file is None else file.read() for file in files]
    return said


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment, what was said then, and the name by which it is kept, if it is."""

    snapshot: mw.Snapshot
    said: dict[str, Any] = field(repr=False)
    name: str | None = None
    step: str = ""


# ---------------------------------------------------------------------------------------------------------------- life


class BusyLife:
    """Random steps; every one of them leaves the table readable."""

    def __init__(self, table: mw.Table, kind: str, seed: int) -> None:
        self.table = table
        self.kind = kind
        self._draw = random.Random(seed)
        self._writer = self._open()
        self._steps = {
            self.put: 6,
            self.delete: 3,
            self.put_much: 1,
            self.flush: 2,
            self.compact: 2,
            self.collect: 1,
            self.maintain: 1,
            self.take_over: 1,
            self.crash: 1,
            self.add_column: 1,
        }

    def _open(self) -> mw.TableWriter:
        return self.table.writer(compaction=None, **_SETTINGS)

    def step(self) -> str:
        (chosen,) = self._draw.choices(list(self._steps), list(self._steps.values()))
        chosen()
        return chosen.__name__

    def moment(self, number: int, step: str) -> Moment:
        """This moment, kept by name every second time."""
        said = answers(self.table, self.kind)
        if number % 2:
            return Moment(self.table.snapshot(), said, step=step)
        name = f"moment-{number}"
        return Moment(self.table.checkpoints.create(name).snapshot, said, name, step)

    def close(self) -> None:
        self._writer.close()

    def _rows(self, count: int) -> list[dict[str, Any]]:
        numbers = self._draw.sample(range(_KEYS), count)
        more = {"n": self._draw.randrange(9)} if "n" in self.table.schema.names else {}
        return [_row(number, self._draw, self.kind) | more for number in numbers]

    def put(self) -> None:
        self._writer.put(self._rows(self._draw.randrange(1, 12)))

    def delete(self) -> None:
        self._writer.delete(self._draw.sample(range(_KEYS), 5))

    def put_much(self) -> None:
        self._writer.put(self._rows(2 * _BULK_ROWS))

    def flush(self) -> None:
        self._writer.flush()

    def compact(self) -> None:
        self.table.compact()

    def collect(self) -> None:
        self.table.gc(grace_seconds=3600)

    def maintain(self) -> None:
        self.table.maintain()

    def take_over(self) -> None:
        fenced, self._writer = self._writer, self._open()
        self._writer.put(self._rows(3))
        fenced.abort()

    def crash(self) -> None:
        self._writer.abort()
        self._writer = self._open()

    def add_column(self) -> None:
        if "n" not in self.table.schema.names:
            self._writer.close()
            self.table.dataset.add_columns(pa.field("n", pa.int64()))
            self._writer = self._open()
