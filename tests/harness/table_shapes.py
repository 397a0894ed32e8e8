"""The tables that whole lives write: every row says which writes made it.

Owns `Shape`: the columns of a table, how keys become rows and rows become what the oracle knows of them. A row has two kinds of
columns. A partial update sets `number` and `note`; all the others (`kept`, the blob, the columns that were added later) stay
as the last whole write left them. Invariants:

1. What a row shows is `(number, kept, columns)`: the write that touched it last, the last one that wrote it whole, and, as
   bits, the added columns that this one gave.
2. Every other column follows from these and the key; a row in which one does not is not intact.
3. Where rows are searched for, the vector of a row is that of no other row, and its note is one word, which all rows of a write
   have: a search for the nearest one finds the row, a search for the word all rows of the write.
"""

import faulthandler
import random
import signal
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import lance
import pyarrow as pa
from lance.blob import blob_array, blob_field

import lance_memwal as mw
from tests.harness.oracle import Row, require_same
from tests.harness.processes import Voice, tell_failure
from tests.harness.shard_audit import peer_snapshot, region_of

KEYS: Final = 48
SHAPES: Final = ("upsert", "composite", "last_write", "first_row", "blobs", "append", "search", "blobs_second")
_IMAGES: Final = {
    "blobs": pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    "blobs_second": blob_field("image"),
}
_VECTOR: Final = pa.field("vector", pa.list_(pa.float32(), 4))


class Shown(NamedTuple):
    """What a row shows: the write that touched it last, the last that wrote it whole, and the added columns that it gave."""

    number: int
    kept: int
    columns: int


def added_name(column: int) -> str:
    return f"x{column}"


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of table; `shards` is 0 for a table that is not sharded."""

    name: str
    shards: int = 0

    @property
    def has_key(self) -> bool:
        return self.name != "append"

    @property
    def has_blobs(self) -> bool:
        """Whether rows have a blob."""
        return self.name in _IMAGES

    @property
    def is_searched(self) -> bool:
        """Whether rows have a vector, and an index of their notes."""
        return self.name == "search"

    @property
    def key_columns(self) -> list[str]:
        """The columns of the primary key."""
        return {"composite": ["region", "id"], "append": []}.get(self.name, ["id"])

    @property
    def schema(self) -> pa.Schema:
        """The columns at the start."""
        fields = [pa.field("region", pa.string(), False)] if self.name == "composite" else []
        fields += [
            pa.field("id", pa.int64(), False),
            pa.field("number", pa.int64()),
            pa.field("kept", pa.int64()),
            pa.field("note", pa.string()),
        ]
        if self.name == "last_write":
            fields.append(pa.field("seq", pa.int64()))
        if self.has_blobs:
            fields.append(_IMAGES[self.name])
        if self.is_searched:
            fields.append(_VECTOR)
        return pa.schema(fields)

    def create(self, uri: str) -> mw.Table:
        """A new table of this shape."""
        merge = {"last_write": mw.LastWrite("seq"), "first_row": mw.FirstRow()}.get(self.name)
        table = mw.create_table(
            uri,
            self.schema,
            primary_key=self.key_columns or None,
            sharding=mw.Bucket("id", self.shards) if self.shards else mw.Unsharded(),
            merge=merge,
        )
        if self.is_searched:
            table.indexes.create(mw.FtsIndex("note"))
        return table

    # ------------------------------------------------------------------------------------------------------ writing

    def rows(
        self, keys: Sequence[int], number: int, columns: Iterable[int] = (), sequence: int | None = None
    ) -> pa.Table:
        """Whole rows of these keys, as the write `number` makes them, with the added `columns`."""
        data = self._parts(keys, number, sequence)
        data["kept"] = [number] * len(keys)
        if self.has_blobs:
            data["image"] = [_image(key, number) for key in keys]
        if self.is_searched:
            data["vector"] = [vector_of(key, number) for key in keys]
        schema = self.schema
        for column in columns:
            data[added_name(column)] = [_added(number, column)] * len(keys)
            schema = schema.append(pa.field(added_name(column), pa.int64()))
        return pa.table([_column(data[field.name], field) for field in schema], schema=schema)

    def parts(self, keys: Sequence[int], number: int) -> pa.Table:
        """The keys, and what a partial update of them sets."""
        data = self._parts(keys, number, None)
        return pa.table({name: pa.array(data[name], self.schema.field(name).type) for name in data})

    def update_values(self, number: int) -> dict[str, Any]:
        """What a partial update of any rows sets."""
        return {"number": number, "note": _note(number)}

    def _parts(self, keys: Sequence[int], number: int, sequence: int | None) -> dict[str, list[Any]]:
        data: dict[str, list[Any]] = self.key_data(keys)
        data["number"] = [number] * len(keys)
        data["note"] = [_note(number)] * len(keys)
        if self.name == "last_write":
            data["seq"] = [number if sequence is None else sequence] * len(keys)
        return data

    def key_data(self, keys: Sequence[int]) -> dict[str, list[Any]]:
        """The key columns of these keys."""
        regions: dict[str, list[Any]] = {"region": [region_of(key) for key in keys]} if self.name == "composite" else {}
        return regions | {"id": list(keys)}

    def key_table(self, keys: Sequence[int]) -> pa.Table:
        """These keys, as deletes and look-ups take them."""
        data = self.key_data(keys)
        return pa.table({name: pa.array(data[name], self.schema.field(name).type) for name in data})

    def key_value(self, key: int) -> Any:
        """One key, as `get` takes it."""
        return (region_of(key), key) if self.name == "composite" else key

    def shards_of(self, sharding: Any, keys: Sequence[int]) -> dict[str, list[int]]:
        """These keys by the shard that has them."""
        batch = pa.record_batch({"id": pa.array(keys, pa.int64())})
        return {shard: part.column(0).to_pylist() for shard, part in sharding.route(batch, self.schema)}

    # ------------------------------------------------------------------------------------------------------ reading

    def rows_of(self, table: pa.Table, images: Mapping[int, bytes | None] | None = None) -> list[Row]:
        """What the rows of a read show; `images` are blobs that were read, by key."""
        return [self._row(row, images or {}) for row in table.to_pylist()]

    def _row(self, row: Mapping[str, Any], images: Mapping[int, bytes | None]) -> Row:
        key, number, kept = row["id"], row["number"], row["kept"]
        added = {int(name[1:]): value for name, value in row.items() if name[0] == "x" and value is not None}
        intact = (
            row["note"] == _note(number)
            and all(value == _added(kept, column) for column, value in added.items())
            and row.get("region", region_of(key)) == region_of(key)
            and ("seq" not in row or row["seq"] == number)
            and ("vector" not in row or row["vector"] == vector_of(key, kept))
            and ("image" not in row or _image_size(row["image"]) == _length(_image(key, kept)))
            and (key not in images or images[key] == _image(key, kept))
        )
        return Row(key, Shown(number, kept, sum(1 << column for column in added)), intact)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    return blob_array(values) if isinstance(field.type, pa.BaseExtensionType) else pa.array(values, field.type)


def vector_of(key: int, kept: int) -> list[float]:
    """The vector of a row that this write made whole."""
    return [float(key), float(kept), float(key * kept % 17), 1.0]


def word_of(number: int) -> str | None:
    """The word in the note of a row that this write touched last."""
    note = _note(number)
    return None if note is None else note.rstrip(".")


def _note(number: int) -> str | None:
    return None if number % 11 == 0 else f"n{number}" + "." * (number % 7 * 5)


def _added(number: int, column: int) -> int:
    return number * 64 + column


def _image(key: int, number: int) -> bytes | None:
    return None if number % 5 == 0 else bytes([key % 251, number % 251]) * (10 + (number * 7 + key) % 400)


def _length(image: bytes | None) -> int | None:
    return None if image is None else len(image)


def _image_size(shown: Any) -> int | None:
    if shown is None or isinstance(shown, bytes):
        return _length(shown)
    size = shown["size"]
    return None if size is None else int(size)


STREAM: Final = "stream"
"""The application of all sinks: each goes on counting where the one before ended."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A transaction as somebody tries it: version `version` of `app`, with rows that say `number`, at `keys` of every shard."""

    app: str
    version: int
    number: int
    keys: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An attempt to make again, with rows that say another number.

    The shards that are known to have the transaction (`held`), and those that show rows of the attempt now, must skip it and keep
    their rows; all others must take it.
    """

    attempt: Attempt
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class TableLife:
    """One life. `kill_at` and `stop_at` are a point and a count; `ending` is what follows the last write.

    `mode` is own, shared, sink or upkeep. Of several processes at once each has its `part` of the keys; sinks that are
    twins (`twin`) make the same appends. One that does not show what it finds may know what is `settled` of it. An upkeep life
    that `collects` does so with every step, after it made something to collect; `beside_shared` writers it claims no log, since
    they would wait a minute for one that stopped with it. `retired` are added columns that were dropped, or nearly;
    `checkpoints` what each must show; one that is `alone` has no other process beside it, not even a stopped one. `repeats` are
    transactions of before, to be made again before anything else.
    """

    uri: str
    shape: Shape
    seed: int
    name: int
    first_number: int
    mode: str = "own"
    threads: int = 1
    writes: int = 30
    part: int = 0
    parts: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    kill_at: tuple[str, int] | None = None
    stop_at: tuple[str, int] | None = None
    twin: int = 0
    alone: bool = True
    shows: bool = True
    consumes: bool = True
    changes_columns: bool = False
    settled: Mapping[int, Shown] | None = None
    collects: bool = False
    beside_shared: bool = False
    may_be_fenced: bool = False
    retired: frozenset[int] = frozenset()
    next_column: int = 0
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    repeats: tuple[Repeat, ...] = ()
    ending: str = "linger"

    @property
    def own_numbers(self) -> int:
        """The number of its first write of its own, after those of `repeats`."""
        return self.first_number + len(self.repeats)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else does anything with the table: no other process, and no other thread of this one."""
        return self.alone and self.threads == 1


# How a process looks at a table: every way to read it must show the same, and what is known must be there.
#
# What differs within one process is an `AssertionError`; what the parent alone knows is told.

CONSUMER: Final = "follower"
_BLOBS_READ: Final = 3
_SEARCHED: Final = 2


def show(table: Any, life: TableLife, voice: Voice, *, every_blob: bool = False) -> dict[int, Shown]:
    """Tell all rows, by shard; an error if count, look-ups and gets show anything else (I7)."""
    shape, rows = life.shape, table.scan().to_table()
    counted = table.count_rows()
    if counted != rows.num_rows:
        raise AssertionError(f"I7: {counted} rows are counted, {rows.num_rows} are scanned")
    images: dict[int, bytes | None] = {}
    if shape.has_key:
        require_same("lookup", table.lookup(shape.key_table(range(KEYS))), rows, but="image")
    if shape.has_blobs:
        ids = rows.column("id").to_pylist()
        sample = ids if every_blob else random.Random(life.seed).sample(ids, min(_BLOBS_READ, len(ids)))
        images = {key: _blob(table, key) for key in sample}
    listed = [without(row, life.retired) for row in shape.rows_of(rows, images)]
    tell(listed, life, table, voice)
    shown = shown_by_key(listed, life)
    if shape.is_searched:
        _require_found(table, shown, random.Random(life.seed))
    return shown


def shown_by_key(rows: Sequence[Row], life: TableLife) -> dict[int, Shown]:
    return {row.key: without(row, life.retired).number for row in rows}  # type: ignore[misc]


def judge_settled(shown: Mapping[int, Shown], life: TableLife) -> None:
    """What nobody else writes now is as it was settled; an error if a scan shows anything else."""
    if life.settled is None or life.twin:
        return
    mine = [key for key in range(KEYS) if key % life.parts == life.part] if life.shape.has_key else life.settled
    wrong = {key: (life.settled.get(key), shown.get(key)) for key in mine if life.settled.get(key) != shown.get(key)}
    if wrong:
        raise AssertionError(f"I1: a scan shows other rows than those that were settled (settled, shown): {wrong}")


def _require_found(table: Any, shown: Mapping[int, Shown], draw: random.Random) -> None:
    """Some rows are found by their vectors and by their words, and nothing else is (I7)."""
    for key in draw.sample(sorted(shown), min(_SEARCHED, len(shown))):
        number, kept, _ = shown[key]
        nearest = table.search(vector_of(key, kept), column="vector", k=1, columns=["id"]).column("id").to_pylist()
        if nearest != [key]:
            raise AssertionError(f"I7: the row of key {key} is not the nearest to its own vector: {nearest}")
        word, same = word_of(number), sorted(other for other, now in shown.items() if now.number == number)
        if word is not None:
            found = table.search(text=word, column="note", k=KEYS, columns=["id"]).column("id").to_pylist()
            if sorted(found) != same:
                raise AssertionError(f"I7: a search for {word} finds {sorted(found)}, rows that have it are {same}")


def without(row: Row, retired: frozenset[int]) -> Row:
    """The row without columns that were dropped, or nearly."""
    shown = row.number
    assert isinstance(shown, Shown)
    mask = sum(1 << column for column in retired)
    return Row(row.key, shown._replace(columns=shown.columns & ~mask), row.intact)


def tell(listed: Sequence[Row], life: TableLife, table: Any, voice: Voice) -> None:
    home = {
        key: shard
        for shard, keys in life.shape.shards_of(table.sharding, [row.key for row in listed]).items()
        for key in keys
    }
    routed: dict[str, list[Row]] = {}
    for row in listed:
        routed.setdefault(home[row.key], []).append(row)
    voice.say("rows", routed)


def _blob(table: Any, key: int) -> bytes | None:
    file = table.get_blob(key, "image")
    if file is None:
        return None
    with file:
        return bytes(file.read())


def moment_of(view: Any) -> dict[int, tuple[int, int]]:
    """The rows of a moment: the write that touched each last, and the last that wrote it whole."""
    rows = view.scan(columns=["id", "number", "kept"]).to_table().to_pylist()
    found = {row["id"]: (row["number"], row["kept"]) for row in rows}
    if len(found) < len(rows):
        raise AssertionError(f"I5: keys are there more than once: {sorted(row['id'] for row in rows)}")
    return found


def digest_of(rows: Mapping[int, tuple[int, int]]) -> int:
    """What the rows of a moment come down to."""
    return zlib.crc32(repr(sorted(rows.items())).encode())


def check_checkpoints(table: mw.Table, expected: Mapping[str, int]) -> None:
    """Every checkpoint shows what it did when it was made (I8)."""
    for name, digest in expected.items():
        if digest_of(moment_of(table.at(name))) != digest:
            raise AssertionError(f"I8: the checkpoint {name} shows other rows than when it was made")


def consume(table: mw.Table, shape: Shape, voice: Voice, draw: random.Random) -> None:
    """Tell every change after the last commit, then commit."""
    wanted = [*shape.key_columns, "number", "kept"] if shape.has_key else ["id", "number", "kept"]
    consumer = table.consumers.open(CONSUMER, start="earliest", until="now", columns=wanted)
    for batch in consumer:
        names = ("id", "number", "kept", "_op")
        voice.say("changes", list(zip(*(batch.column(name).to_pylist() for name in names), strict=True)))
        if draw.random() < 0.3:
            consumer.commit()
    consumer.commit()


def finish_table(life: TableLife, pipe: Connection) -> None:
    """Show that a table which went through all this is whole: every reader, every tier, every promise."""
    voice = Voice(pipe)
    faulthandler.register(signal.SIGUSR1)
    try:
        _finish(life, voice)
        voice.say("done")
    except BaseException:
        tell_failure(voice)


def _finish(life: TableLife, voice: Voice) -> None:
    table, shape = mw.open_table(life.uri), life.shape
    show(table, life, voice, every_blob=True)
    check_checkpoints(table, life.checkpoints)
    _verify(table, voice)
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put(shape.schema.empty_table(), missing="null")
        writer.flush()
    show(table, life, voice)
    table.flush(idle_seconds=0, force=True)
    if shape.has_key and not shape.has_blobs and not any(name[0] == "x" for name in table.schema.names):
        _tell_read(_peer(table), life, table, voice)
    table.compact()
    _tell_read(lance.dataset(life.uri).to_table(), life, table, voice)
    _verify(table, voice)
    consume(table, shape, voice, random.Random(life.seed))
    voice.say("consumed")
    table.gc(grace_seconds=0)
    table.maintain(grace_seconds=0)
    check_checkpoints(table, life.checkpoints)
    _verify(table, voice)
    show(mw.open_table(life.uri), life, voice, every_blob=True)


def _tell_read(rows: pa.Table, life: TableLife, table: mw.Table, voice: Voice) -> None:
    """Tell rows that somebody else's reader gave."""
    tell([without(row, life.retired) for row in life.shape.rows_of(rows)], life, table, voice)


def _peer(table: mw.Table) -> pa.Table:
    """The rows as pylance's own reader shows them."""
    from lance.mem_wal import LsmScanner

    snapshots = [peer_snapshot(table.uri, info.shard_id) for info in table.shards()]
    if not snapshots:
        return table.dataset.to_table()
    scanner: Any = LsmScanner.from_snapshots(table.dataset, snapshots)
    read: pa.Table = scanner.to_table()
    return read


def _verify(table: mw.Table, voice: Voice) -> None:
    voice.say("verified", [str(problem) for problem in table.verify().problems])
