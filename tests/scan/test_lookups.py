"""Gets and lookups: what a get finds in whichever tier, what it costs over cold SSTables, and keys that are deleted."""

import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.read import base_rows, lookup
from lance_memwal.sstable import sidecar, write
from lance_memwal.write.shard import Shard
from tests.kit.tables import watched_table

TOTAL = 60
NUMBERS = list(range(TOTAL))
KEYS: dict[str, dict[str, pa.Array]] = {
    "int64": {"k": pa.array([n * 3 - 50 for n in NUMBERS])},
    "int8": {"k": pa.array(NUMBERS, pa.int8())},
    "uint64": {"k": pa.array([(1 << 64) - 1 - n for n in NUMBERS], pa.uint64())},
    "string": {"k": pa.array([f"key {n}" for n in NUMBERS])},
    "binary": {"k": pa.array([bytes([n, 0]) for n in NUMBERS])},
    "date": {"k": pa.array([date(1969, 12, 20) + timedelta(days=n) for n in NUMBERS])},
    "timestamp": {"k": pa.array([datetime(2020, 1, 1) + timedelta(seconds=n) for n in NUMBERS], pa.timestamp("us"))},
    "two columns": {"a": pa.array([f"t{n % 5}" for n in NUMBERS]), "b": pa.array(NUMBERS)},
    "int32": {"k": pa.array([n - 30 for n in NUMBERS], pa.int32())},
    "texts that begin with nothing": {"k": pa.array(["", *("\0" * n + "é" for n in NUMBERS[1:])], pa.large_string())},
    "zero bytes": {"k": pa.array([bytes(n) for n in NUMBERS], pa.large_binary())},
    "long binary": {"k": pa.array([b"x" * 300 + bytes([n]) for n in NUMBERS])},
    "fixed size": {"k": pa.array([bytes(15) + bytes([n]) for n in NUMBERS], pa.binary(16))},
    "uuid": {"k": pa.array([UUID(int=n << 60).bytes for n in NUMBERS], pa.uuid())},
    "decimal": {"k": pa.array([Decimal(n - 30) / 4 for n in NUMBERS], pa.decimal128(12, 2))},
    "in UTC": {
        "k": pa.array(
            [datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC) + timedelta(seconds=n) for n in NUMBERS],
            pa.timestamp("ms", "UTC"),
        )
    },
    "bytes and bool": {
        "a": pa.array([bytes(n // 2) for n in NUMBERS]),
        "b": pa.array([n % 2 == 0 for n in NUMBERS]),
    },
    "five columns": {
        "a": pa.array([Decimal(n % 3 - 1) for n in NUMBERS], pa.decimal256(50, 2)),
        "b": pa.array(["\0" * (n % 4) for n in NUMBERS]),
        "c": pa.array([date(1970, 1, 1) - timedelta(days=n % 2) for n in NUMBERS]),
        "d": pa.array([UUID(int=n % 5).bytes for n in NUMBERS], pa.uuid()),
        "e": pa.array(NUMBERS, pa.uint8()),
    },
}
MISSING: dict[str, list[Any]] = {
    "int64": [-(1 << 63)],
    "uint64": [0, (1 << 63) - 1],
    "string": ["", "key", "key 600", "\0"],
    "binary": [b"", b"\0", bytes([5, 0, 0])],
    "two columns": [("", 0), ("t0", 1), ("t", 5), ("t1", -(1 << 63))],
    "texts that begin with nothing": ["\0", "é\0"],
    "zero bytes": [bytes(TOTAL), b"\0\1"],
    "long binary": [b"x" * 300, b"x" * 300 + b"\0\0"],
    "decimal": [Decimal("-9999999999.99")],
    "bytes and bool": [(b"\0\0\xff", True), (bytes(TOTAL), False)],
}
MISFITS: dict[str, list[Any]] = {
    "int32": [1 << 31, "5"],
    "int8": [1000, -129, 1 << 80, None, "5"],
    "uint64": [-1, 1 << 64],
    "string": [5, "\ud800"],
    "fixed size": [b"", bytes(15)],
    "decimal": [Decimal("0.001"), Decimal(10**11)],
    "two columns": [("t0", 1 << 63), ("\ud800", 1), ("t0", None), (None, 0), ("t0",), ("t0", 1, 2)],
    "bytes and bool": [(b"", 1 << 70), (b"", None)],
    "five columns": [(Decimal(0), "", date(1970, 1, 1), UUID(int=0), 256)],
}
SHARDS = 8
SOME = sorted({*range(0, TOTAL, 4), 12, 15, 23})  # of every tier, and the dead ones


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    CACHE.clear()
    yield
    CACHE.clear()


def rows_of(keys: dict[str, pa.Array], chosen: slice, word: str) -> pa.Table:
    numbers = np.arange(TOTAL)[chosen]
    columns = {name: column.take(pa.array(numbers)) for name, column in keys.items()}
    values = pa.array([f"{word} {n}" for n in numbers])
    nested = pa.array([None if n % 7 == 0 else {"x": int(n)} for n in numbers], pa.struct([("x", pa.int64())]))
    return pa.table({**columns, "v": values, "s": nested})


def made(place: Path, kind: str, sharding: Any) -> tuple[mw.Table, mw.TableWriter, list[Any]]:
    """Rows in the base table, two SSTables and a memtable, each of which supersedes and deletes some of the older ones."""
    keys = KEYS[kind]
    first = rows_of(keys, slice(0, 40), "base")
    schema = pa.schema([f.with_nullable(f.name not in keys) for f in first.schema])
    table = mw.create_table(
        str(place), schema, primary_key=list(keys), sharding=sharding, writer_defaults={"fsync": False}
    )
    lance.write_dataset(first.cast(schema).cast(table.schema), table.uri, mode="append")
    table = mw.open_table(str(place))
    given = pa.table(keys).to_pylist()
    named = [next(iter(k.values())) if len(k) == 1 else tuple(k.values()) for k in given]
    writer = table.writer(compaction=None)
    for chosen, dead, word in (
        (slice(10, 50, 2), 12, "one"),
        (slice(20, 52, 3), 23, "two"),
        (slice(5, 55, 5), 15, "new"),
    ):
        writer.put(rows_of(keys, chosen, word))
        writer.delete([named[dead]])
        if word != "new":
            writer.flush()
    return table, writer, named


@pytest.mark.parametrize("kind", ["int64", "int8", "string", "binary", "date", "timestamp", "two columns"])
def test_a_get_is_a_lookup_of_one_key_in_every_tier(tmp_path: Path, kind: str) -> None:
    table, writer, named = made(tmp_path / "t", kind, mw.Unsharded())
    with writer:
        readers = {"beside the writer": table, "without it": None}
        for name, columns in (("all", None), ("some", ["v", "s.x"]), ("none", [])):
            for who, reader in readers.items():
                for key in [named[at] for at in SOME]:
                    reader = reader or mw.open_table(table.uri)
                    found = reader.lookup([key], columns)
                    wanted = found.to_pylist()[0] if found.num_rows else None
                    if columns == []:
                        wanted = {} if len(reader.lookup([key])) else None
                    assert reader.get(key, columns) == wanted, (who, name, key)
            writer.flush()
    cold = mw.open_table(table.uri)
    for key in named[::7]:
        CACHE.clear()
        assert [cold.get(key)] == (cold.lookup([key]).to_pylist() or [None])


@pytest.mark.parametrize("kind", KEYS)
def test_every_key_is_found_where_its_newest_row_is(tmp_path: Path, kind: str) -> None:
    table, writer, named = made(tmp_path / "t", kind, mw.Unsharded())
    newest = {
        **dict.fromkeys(range(40), "base"),
        **dict.fromkeys(range(10, 50, 2), "one") | {12: None},
        **dict.fromkeys(range(20, 52, 3), "two") | {23: None},
        **dict.fromkeys(range(5, 55, 5), "new") | {15: None},
    }
    with writer:
        for _ in range(2):  # with the newest rows in memory, and on storage
            for number, key in enumerate(named):
                row = table.get(key, ["v"])
                word = newest.get(number)
                assert row == (None if word is None else {"v": f"{word} {number}"}), key
            for key in MISSING.get(kind, []):
                assert table.get(key) is None, key
            writer.flush()


@pytest.mark.parametrize("kind", MISFITS)
def test_what_no_key_of_the_type_can_be_is_refused_in_every_state(tmp_path: Path, kind: str) -> None:
    table, writer, named = made(tmp_path / "t", kind, mw.Unsharded())
    empty = mw.create_table(str(tmp_path / "empty"), table.schema, primary_key=table.primary_key)
    with writer:
        with pytest.raises(mw.InvalidInputError, match="is not in the table"):
            table.get(named[0], ["nobody"])
        for key in named:
            table.get(key)  # so that the keys of the base table are in memory
        for _ in range(2):
            for bad in MISFITS[kind]:
                with pytest.raises(mw.InvalidInputError) as of_get:
                    table.get(bad)
                with pytest.raises(mw.InvalidInputError) as of_lookup:
                    table.lookup([bad])
                with pytest.raises(mw.InvalidInputError) as of_nothing:
                    empty.get(bad)
                assert str(of_get.value) == str(of_lookup.value) == str(of_nothing.value)
            writer.flush()


def test_a_key_whose_hash_another_one_has_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_rows, "hash_codes", lambda keys: np.full(len(keys), 7, np.uint64))
    monkeypatch.setattr(base_rows, "hash_code", lambda key: 7)
    for kind in ("string", "two columns"):
        table, writer, named = made(tmp_path / kind, kind, mw.Unsharded())
        with writer:
            for _ in range(2):
                assert [table.get(named[n], ["v"]) for n in (1, 3, 39)] == [{"v": f"base {n}"} for n in (1, 3, 39)]
                assert table.get(named[-1]) is None
                for key in named:
                    table.get(key)


@pytest.mark.parametrize("sharding", [mw.Bucket("k", SHARDS), mw.Identity("k")])
def test_get_asks_the_writer_of_its_shard_alone(tmp_path: Path, sharding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_FEW_WRITERS", 4)
    table, writer, named = made(tmp_path / "t", "int64", sharding)
    with writer:
        assert len(writer.shard_writers) > 4
        for key in named:
            assert [table.get(key)] == (table.lookup([key]).to_pylist() or [None])
        asked: list[str] = []
        honest = Shard.capture
        monkeypatch.setattr(Shard, "capture", lambda shard: asked.append(shard.log.shard_id) or honest(shard))
        fresh = named[50]
        assert table.get(fresh)["v"] == "new 50"
        assert asked == [mw.shard_id_for(sharding, fresh, kind=pa.int64())]


def test_a_get_asks_storage_as_often_with_many_shards_as_with_one(tmp_path: Path) -> None:
    counts = {}
    for shards in (1, SHARDS, 4 * SHARDS):
        place = tmp_path / str(shards)
        _, writer, named = made(place, "int64", mw.Bucket("k", shards))
        with writer:
            calls: list[tuple[str, str]] = []
            watched = watched_table(str(place), lambda name, path, calls=calls: calls.append((name, path)))
            for key in named:
                watched.get(key)
            found = []
            for key in (named[50], named[49], named[3], -1_000):  # of a memtable, an SSTable, the base, of nothing
                calls.clear()
                watched.get(key)
                found.append(sorted(name for name, _ in calls))
            counts[shards] = found
    assert counts[1] == counts[SHARDS] == counts[4 * SHARDS]


def test_a_key_in_a_tuple_of_one_is_the_key(tmp_path: Path) -> None:
    table, writer, named = made(tmp_path / "t", "int64", mw.Unsharded())
    with writer:
        for key in [named[n] for n in SOME]:
            assert table.get((key,)) == writer.get((key,)) == table.get(key)


def test_a_delete_in_one_shard_does_not_hide_the_row_of_another(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])
    table = mw.create_table(
        str(tmp_path / "t"), schema, primary_key="id", sharding=mw.Manual(), allow_keys_across_shards=True
    )
    first, second = ("00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b")
    with table.shard_writer(first, fsync=False) as one, table.shard_writer(second, fsync=False) as other:
        one.put([{"id": 1, "v": "a"}])
        other.put([{"id": 1, "v": "b"}])
        one.delete([1])
        assert table.get(1) == {"id": 1, "v": "b"} == table.lookup([1]).to_pylist()[0]
        assert one.get(1) is None


def test_a_handle_of_a_table_that_was_made_anew_asks_for_its_owner_anew(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])
    uri = str(tmp_path / "t")
    old = mw.create_table(uri, schema, primary_key="id", writer_defaults={"fsync": False})
    with old.writer() as writer:
        writer.put([{"id": 7, "v": "old"}])
    old.compact()
    assert old.get(7) == {"id": 7, "v": "old"}
    mw.open_table(uri).drop()
    new = mw.create_table(uri, schema, primary_key="id", writer_defaults={"fsync": False})
    fenced = new.writer()
    fenced.put([{"id": 1, "v": "x"}])
    fenced.flush()
    fenced.put([{"id": 7, "v": "A"}])  # its manifest has the number that the one of the old table had
    with mw.open_table(uri).writer() as writer:
        writer.put([{"id": 7, "v": "B"}])
        assert old.get(7) == {"id": 7, "v": "B"}
    fenced.abort()


@pytest.mark.parametrize("sharding", [mw.Unsharded(), mw.Bucket("k", SHARDS)])
def test_a_text_that_is_none_is_refused(tmp_path: Path, sharding: Any) -> None:
    schema = pa.schema([pa.field("k", pa.string(), False)])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="k", sharding=sharding)
    with pytest.raises(mw.InvalidInputError):
        table.get("\ud800")


def test_an_empty_tuple_is_no_key(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.schema([("v", pa.int64())]))
    with table.writer(fsync=False) as writer:
        writer.put([{"v": 1}])
        with pytest.raises(mw.InvalidInputError, match="no primary key"):
            table.get(())


# A get of few keys over many cold SSTables asks their filters, and reads more only where a filter says "maybe".

GENERATIONS, ROWS = 12, 40
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def grown(place: Path, schema: pa.Schema = SCHEMA) -> str:
    """Generation n has keys 100 n to 100 n + 39, and -1; the last one deletes the key 5."""
    table = mw.create_table(str(place), schema, primary_key="id", sharding=mw.Unsharded())
    with table.writer(compaction=None, fsync=False) as writer:
        for number in range(GENERATIONS):
            keys = [-1 if schema is SCHEMA else 9999, *range(100 * number, 100 * number + ROWS)]
            writer.put(pa.table([pa.array(keys, schema.field(0).type), pa.array([f"g{number}"] * len(keys))], schema))
            if number == GENERATIONS - 1:
                writer.delete([5])
            writer.flush()
    return str(place)


def directories(uri: str) -> list[Path]:
    return sorted(Path(uri, "_mem_wal").glob("*/*_gen_*"), key=lambda path: int(path.name.rpartition("_")[2]))


class Watched:
    """A table whose store calls below SSTables are counted."""

    def __init__(self, uri: str) -> None:
        self.calls: list[tuple[str, str]] = []
        self.table = watched_table(uri, lambda name, path: self.calls.append((name, path)))
        self.table.details()

    def get(self, key: int) -> tuple[dict[str, object] | None, list[tuple[str, str]]]:
        self.calls.clear()
        row = self.table.get(key)
        return row, [(name, path) for name, path in self.calls if "_gen_" in path]


def test_a_missing_key_costs_one_small_read_per_sstable_and_later_ones_none(tmp_path: Path) -> None:
    uri = grown(tmp_path / "t")
    for directory in directories(uri):  # what a filter that says no makes unnecessary
        for part in ("_pk_index", "data", "_versions", "_deletions"):
            shutil.rmtree(directory / part, ignore_errors=True)
    watched = Watched(uri)
    row, calls = watched.get(50)
    assert row is None
    assert sorted(name for name, _ in calls) == ["get"] * GENERATIONS
    assert all(path.endswith("bloom_filter.bin") for _, path in calls)
    assert watched.get(51) == (None, [])


def test_a_key_is_read_from_the_sstable_that_has_it(tmp_path: Path) -> None:
    uri = grown(tmp_path / "t")
    for directory in directories(uri)[:3] + directories(uri)[4:]:
        shutil.rmtree(directory / "data")
        shutil.rmtree(directory / "_pk_index")
    watched = Watched(uri)
    row, calls = watched.get(301)
    assert row == {"id": 301, "v": "g3"}
    filters = [path for _, path in calls if path.endswith("bloom_filter.bin")]
    assert len(filters) == GENERATIONS - 3, "older ones are not asked"
    assert len(calls) - len(filters) == 2, "which versions there are, and the newest manifest"
    row, calls = watched.get(302)
    assert row == {"id": 302, "v": "g3"}
    assert calls == []


def test_the_newest_row_and_the_newest_delete_win(tmp_path: Path) -> None:
    table = mw.open_table(grown(tmp_path / "t"))
    assert table.get(-1) == {"id": -1, "v": f"g{GENERATIONS - 1}"}
    assert table.get(5) is None
    found = table.lookup([-1, 5, 6, 107, 1105, 4711])
    assert sorted(found.column("id").to_pylist()) == [-1, 6, 107, 1105]


def test_many_keys_or_many_gets_have_all_keys_read(tmp_path: Path) -> None:
    uri = grown(tmp_path / "t")
    keys = [100 * number + at for number in range(GENERATIONS) for at in range(ROWS) if (number, at) != (0, 5)]
    watched = Watched(uri)
    assert watched.table.lookup([*keys, 5]).num_rows == len(keys)
    assert not [path for _, path in watched.calls if path.endswith("bloom_filter.bin")]
    CACHE.clear()
    watched = Watched(uri)
    for key in keys[:100]:
        row, _ = watched.get(key)
        assert row is not None
        assert row["id"] == key
    for directory in directories(uri):
        (directory / "bloom_filter.bin").unlink()
        shutil.rmtree(directory / "_pk_index")
    assert watched.get(77)[0] is None, "the keys of all are in memory by now"


def test_without_a_filter_or_where_it_ignores_values_the_sidecar_is_asked(tmp_path: Path) -> None:
    uri = grown(tmp_path / "t")
    for directory in directories(uri):
        (directory / "bloom_filter.bin").unlink()
    assert mw.open_table(uri).get(407) == {"id": 407, "v": "g4"}
    assert mw.open_table(uri).get(50) is None
    other = grown(tmp_path / "u", pa.schema([pa.field("id", pa.uint64(), nullable=False), ("v", pa.string())]))
    watched = Watched(other)
    row, calls = watched.get(407)
    assert row == {"id": 407, "v": "g4"}
    assert not [path for _, path in calls if path.endswith("bloom_filter.bin")]


def test_a_damaged_filter_is_named(tmp_path: Path) -> None:
    uri = grown(tmp_path / "t")
    directories(uri)[6].joinpath("bloom_filter.bin").write_bytes(b"\1" * 100)
    with pytest.raises(mw.CorruptDataError) as caught:
        mw.open_table(uri).get(50)
    assert caught.value.path is not None
    assert caught.value.path.endswith("bloom_filter.bin")


def test_a_short_sidecar_hides_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(columns: list[pa.Array]) -> sidecar.SortedKeys:
        known = sidecar.sort_keys([column.slice(0, 10) for column in columns])
        return sidecar.SortedKeys(known.values, known.stored, known.order, np.empty(0, np.int64))

    monkeypatch.setattr(write, "sort_keys", short)
    table = mw.open_table(grown(tmp_path / "t"))
    assert table.get(307) == {"id": 307, "v": "g3"}
    assert table.get(339) == {"id": 339, "v": "g3"}
    assert table.get(5) is None
    assert table.get(350) is None


def test_what_is_kept_of_cold_sstables_counts(tmp_path: Path) -> None:
    uri = grown(tmp_path / "t")
    table = mw.open_table(uri)
    table.get(50)
    assert CACHE.size_bytes >= GENERATIONS * 32768
    limit = CACHE.limit_bytes
    try:
        CACHE.limit_bytes = 4 * 65536
        assert table.get(301) == {"id": 301, "v": "g3"}
        assert table.get(50) is None
        assert CACHE.size_bytes <= 4 * 65536
    finally:
        CACHE.limit_bytes = limit


NAMED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("meta", pa.struct([("a", pa.int64())])),
    ]
)


def named_rows(*ids: int) -> list[dict[str, object]]:
    return [{"id": i, "name": f"n{i}", "meta": {"a": i}} for i in ids]


def shown(found: pa.Table) -> dict[int, tuple[str | None, bool]]:
    assert found.schema.names[-1] == "_tombstone"
    return {row["id"]: (row["name"], row["_tombstone"]) for row in found.to_pylist()}


@pytest.mark.parametrize("stage", ["memtable", "log", "SSTable"])
def test_a_deleted_key_has_a_row_that_says_so(tmp_path: Path, stage: str) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, NAMED, primary_key="id", writer_defaults={"fsync": False})
    writer = table.shard_writer()
    writer.put(named_rows(1, 2, 3))
    writer.close()
    table.compact()
    writer = table.shard_writer()
    writer.delete([2, 9])
    writer.put(named_rows(4))
    if stage == "log":
        writer.abort()
    if stage == "SSTable":
        writer.close()
    read = table if stage == "memtable" else mw.open_table(uri)
    asked = [1, 2, 4, 9, 77]
    live = {1: ("n1", False), 4: ("n4", False)}
    assert shown(read.lookup(asked, with_tombstones=True)) == {**live, 2: (None, True), 9: (None, True)}
    assert sorted(read.lookup(asked)["id"].to_pylist()) == [1, 4]
    narrow = read.lookup(asked, ["meta.a"], with_tombstones=True)
    assert narrow.schema.names == ["meta.a", "_tombstone"]
    assert sorted(map(str, narrow.to_pylist())) == sorted(
        str({"meta.a": a, "_tombstone": dead}) for a, dead in ((1, False), (4, False), (None, True), (None, True))
    )
    assert read.lookup([77], with_tombstones=True).schema.names == [*NAMED.names, "_tombstone"]
    if stage == "memtable":
        assert shown(writer.lookup([2], with_tombstones=True)) == {2: (None, True)}
        writer.put(named_rows(2))
        assert shown(writer.lookup([2], with_tombstones=True)) == {2: ("n2", False)}
    writer.abort()
    if stage == "SSTable":
        table.compact()
        assert shown(mw.open_table(uri).lookup(asked, with_tombstones=True)) == live


def test_the_flag_is_one(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), NAMED, primary_key="id", writer_defaults={"fsync": False})
    with pytest.raises(mw.InvalidInputError, match="with_tombstones"):
        table.lookup([1], with_tombstones="yes")  # type: ignore[arg-type]


def test_deletes_that_do_not_wait_are_seen_at_once_and_durable_when_waited_for(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, NAMED, primary_key="id", sharding=mw.Bucket("id", 3), writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put(named_rows(*range(12)))
        ack = writer.delete_nowait(list(range(6)))
        ack.wait(30)
        assert ack.durable
        assert sorted(mw.open_table(uri).scan(["id"]).to_table()["id"].to_pylist()) == list(range(6, 12))
        nothing = writer.delete_nowait([])
        nothing.wait(5)
        assert nothing.durable
        shard = next(iter(writer.shard_writers.values()))
        own = [i for i in range(6, 12) if mw.shard_id_for(table.sharding, i) == shard.shard_id]
        shard.delete_nowait(own).wait(30)
        assert writer.get(own[0]) is None
    assert table.count_rows() == 6 - len(own)
    keyless = mw.create_table(str(tmp_path / "u"), NAMED, writer_defaults={"fsync": False})
    with keyless.writer() as writer, pytest.raises(mw.InvalidInputError, match="no primary key"):
        writer.delete_nowait([1])
