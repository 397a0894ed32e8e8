"""Reads next to writers, compactions, commits and clean-ups of other processes."""

import datetime as dt
import multiprocessing
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.compact.run import Compactor
from lance_memwal.errors import CorruptDataError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.process.cache import CACHE
from lance_memwal.read.lookup import lookup_rows
from lance_memwal.read.tiers import TierSource
from lance_memwal.store.location import resolve
from tests.kit.tables import watched_table
from tests.kit.writers import in_thread

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("value", pa.int64())])


def _serve(pipe: Connection) -> None:
    """Do what the other end asks of a writer, until it asks for nothing more."""
    writers: dict[str, mw.TableWriter] = {}
    while (asked := pipe.recv()) is not None:
        try:
            pipe.send(_do(writers, *asked))
        except mw.MemWalError as error:
            pipe.send(repr(error))


def _do(writers: dict[str, mw.TableWriter], uri: str, verb: str, arguments: tuple[Any, ...]) -> None:
    if verb == "open":
        writers[uri] = mw.open_table(uri).writer(compaction=None, fsync=False)
    elif verb == "close":
        writers.pop(uri).close()
    elif verb == "puts":
        for given in arguments[0]:
            writers[uri].put(given)
    else:
        getattr(writers[uri], verb)(*arguments)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs,), daemon=True)
    child.start()
    yield ours
    ours.send(None)
    child.join(60)


class Elsewhere:
    """A writer in another process, and a table here that reads beside it."""

    def __init__(self, pipe: Connection, uri: str) -> None:
        self._pipe, self.uri = pipe, uri
        self.calls: list[tuple[str, str]] = []
        self.table = watched_table(uri, lambda name, path: self.calls.append((name, path)))
        self.ask("open")

    def ask(self, verb: str, *arguments: Any) -> None:
        self._pipe.send((self.uri, verb, arguments))
        assert self._pipe.poll(60)
        assert self._pipe.recv() is None

    def put(self, *numbers: int, value: int = 0) -> None:
        self.ask("put", rows(*numbers, value=value))

    def requests(self, read: Any) -> Counter[str]:
        """The kinds of calls on the shard that `read` makes."""
        self.calls.clear()
        read()
        return Counter(name for name, path in self.calls if "_mem_wal/" in path)


def rows(*numbers: int, value: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"k{n}", "value": value or n} for n in numbers]


@pytest.fixture
def elsewhere(pipe: Connection, tmp_path: Path) -> Iterator[Elsewhere]:
    CACHE.clear()
    uri = str(tmp_path / "t")
    mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Unsharded())
    found = Elsewhere(pipe, uri)
    yield found
    found.ask("close")


def entries_in(uri: str) -> list[Path]:
    return [path for path in Path(uri, "_mem_wal").glob("*/wal/*") if path.is_file()]


def test_an_entry_is_read_once_and_a_read_that_finds_nothing_new_lists_nothing(elsewhere: Elsewhere) -> None:
    elsewhere.ask("puts", [rows(n) for n in range(100)])
    table = elsewhere.table
    assert elsewhere.requests(lambda: table.get("k7"))["get"] >= 100
    for read in (
        lambda: table.get("k7"),
        lambda: table.get("nowhere"),
        table.count_rows,
        lambda: table.scan().to_table(),
    ):
        asked = elsewhere.requests(read)
        assert asked["list_names"] + asked["list"] == 0
        assert asked["get"] == 2  # the next entry and the next manifest, which are not there
        assert asked["head"] == 1  # the manifest is still there
    elsewhere.put(7, value=70)
    asked = elsewhere.requests(lambda: table.get("k7"))
    assert (asked["get"], asked["list_names"]) == (3, 0)
    assert table.get("k7") == {"id": "k7", "value": 70}
    assert table.count_rows() == 100


def test_what_comes_is_seen_and_what_was_captured_stays(elsewhere: Elsewhere) -> None:
    elsewhere.put(1, 2)
    scan = elsewhere.table.scan()
    elsewhere.put(2, 3, value=9)
    elsewhere.ask("delete", ["k1"])
    assert sorted(scan.to_table()["id"].to_pylist()) == ["k1", "k2"]
    assert sorted(map(tuple, (row.values() for row in elsewhere.table.scan().to_table().to_pylist()))) == [
        ("k2", 9),
        ("k3", 9),
    ]
    assert elsewhere.table.get("k1") is None


def test_a_flush_a_compaction_and_a_takeover_are_followed(elsewhere: Elsewhere) -> None:
    model: dict[str, int] = {}

    def check() -> None:
        assert {r["id"]: r["value"] for r in elsewhere.table.scan().to_table().to_pylist()} == model
        assert elsewhere.table.count_rows() == len(model)
        for name in ("k0", "k1", "k5"):
            assert elsewhere.table.get(name) == ({"id": name, "value": model[name]} if name in model else None)

    for step in range(6):
        elsewhere.put(step, step + 1, value=100 + step)
        model |= {f"k{n}": 100 + step for n in (step, step + 1)}
        check()
        elsewhere.ask("delete", [f"k{step}"])
        model.pop(f"k{step}")
        check()
        if step in (1, 3):
            elsewhere.ask("flush")
            check()
        if step == 3:
            elsewhere.table.compact()
            check()
        if step == 4:
            elsewhere.ask("close")
            elsewhere.ask("open")
            check()


def test_many_entries_that_came_at_once_are_read_at_once(elsewhere: Elsewhere) -> None:
    elsewhere.put(0)
    assert elsewhere.table.count_rows() == 1
    elsewhere.ask("puts", [rows(n) for n in range(1, 60)])
    assert elsewhere.requests(elsewhere.table.count_rows)["list_names"] == 1
    assert elsewhere.table.count_rows() == 60


def test_entries_that_were_flushed_meanwhile_are_not_read(elsewhere: Elsewhere) -> None:
    elsewhere.put(0)
    assert elsewhere.table.count_rows() == 1
    elsewhere.ask("puts", [rows(n) for n in range(1, 60)])
    elsewhere.ask("flush")
    elsewhere.calls.clear()
    assert elsewhere.table.count_rows() == 60
    assert sum("/wal/" in path for name, path in elsewhere.calls if name == "get") <= 10  # of 60


def test_other_columns_are_read_from_the_beginning(elsewhere: Elsewhere) -> None:
    elsewhere.put(1)
    assert elsewhere.table.count_rows() == 1
    lance.dataset(elsewhere.uri).add_columns(pa.field("more", pa.int64()))
    assert elsewhere.table.get("k1") == {"id": "k1", "value": 1, "more": None}


def test_a_table_that_was_made_anew_shows_none_of_the_old_rows(elsewhere: Elsewhere) -> None:
    elsewhere.put(1, 2)
    assert elsewhere.table.count_rows() == 2
    elsewhere.ask("close")
    shutil.rmtree(elsewhere.uri)
    mw.create_table(elsewhere.uri, SCHEMA, primary_key="id", sharding=mw.Unsharded())
    elsewhere.ask("open")
    elsewhere.put(3)
    assert elsewhere.table.scan().to_table()["id"].to_pylist() == ["k3"]


def test_a_hole_is_found_although_most_reads_do_not_list(elsewhere: Elsewhere) -> None:
    elsewhere.put(1)
    assert elsewhere.table.count_rows() == 1
    before = entries_in(elsewhere.uri)
    elsewhere.put(2)
    (missing,) = set(entries_in(elsewhere.uri)) - set(before)
    elsewhere.put(3)
    missing.unlink()

    def read_often() -> None:
        for _ in range(100):
            elsewhere.table.count_rows()

    with pytest.raises(CorruptDataError):
        read_often()


def test_threads_share_a_followed_tail(elsewhere: Elsewhere) -> None:
    elsewhere.put(0)
    stop = threading.Event()

    def read() -> None:
        least = 0
        while not stop.is_set():
            found = elsewhere.table.count_rows()
            assert found >= least
            least = found

    readers = [in_thread(read) for _ in range(3)]
    for number in range(1, 40):
        elsewhere.put(number)
    stop.set()
    for reader in readers:
        reader.result(60)
    assert elsewhere.table.count_rows() == 40


@pytest.mark.parametrize("opened", ["before", "anew"])
def test_a_table_that_is_copied_back_to_its_place_is_read_as_it_is_there(tmp_path: Path, opened: str) -> None:
    """It has the names, numbers and identity of the one before, and other rows."""
    uri, kept = tmp_path / "t", [tmp_path / name for name in "ab"]
    mw.create_table(str(uri), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    shutil.copytree(uri, tmp_path / "made")
    for number, place in enumerate(kept):
        shutil.rmtree(uri)
        shutil.copytree(tmp_path / "made", uri)
        writer = mw.open_table(str(uri)).writer()
        writer.put(rows(number))
        writer.abort()
        shutil.copytree(uri, place)
    shutil.rmtree(uri)
    table = mw.open_table(str(tmp_path / "made"))
    for number in (0, 1, 0):
        shutil.copytree(kept[number], uri)
        if opened == "anew" or table.uri != str(uri):
            table = mw.open_table(str(uri))
        for _ in range(2):
            found = table.scan(columns=["id"]).to_table().column("id").to_pylist()
            assert found == [f"k{number}"]
        shutil.rmtree(uri)


# What a read holds does not move: neither by a compaction of the same process nor by what users commit.

PLAIN = pa.schema([("id", pa.int64()), ("note", pa.string())])
KEY = pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"})
KEYED = pa.schema([KEY, ("note", pa.string())])


def _index_the_key(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("id", "BTREE")


def _nothing(_: str) -> None:
    return None


WAYS: dict[str, tuple[pa.Schema, list[int], dict[str, Any], Callable[[str], None]]] = {
    "by hand": (KEYED, [1, 2, 3], {}, _nothing),
    "index on the key": (KEYED, [1, 2, 3], {}, _index_the_key),
    "stable row ids": (KEYED, [1, 2, 3], {"enable_stable_row_ids": True}, _nothing),
    "old manifest names": (KEYED, [1, 2, 3], {"enable_v2_manifest_paths": False}, _nothing),
    "append-only, stable row ids": (PLAIN, [1, 2, 3], {"enable_stable_row_ids": True}, _nothing),
    "append-only, stable row ids, empty": (PLAIN, [], {"enable_stable_row_ids": True}, _nothing),
}


def _table(place: Path, way: str) -> mw.Table:
    schema, ids, options, prepare = WAYS[way]
    uri = str(place)
    lance.write_dataset(pa.table([ids, ["base"] * len(ids)], schema=schema), uri, **options)
    prepare(uri)
    return mw.enable(uri, sharding=mw.Unsharded(), writer_defaults={"fsync": False})


def _rows(scan: Any) -> list[tuple[int, str]]:
    return sorted((row["id"], row["note"]) for row in scan.to_table().to_pylist())


@pytest.mark.repro("reads-02")
@pytest.mark.parametrize("way", WAYS)
def test_a_held_scan_shows_what_it_captured_whatever_is_compacted(tmp_path: Path, way: str) -> None:
    table = _table(tmp_path / "t", way)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 100, "note": "first"}])
        writer.flush()
        held = table.scan()
        wanted = _rows(table.scan())
        writer.put([{"id": 1, "note": "second"}, {"id": 101, "note": "second"}])
        if table.primary_key:
            writer.delete([2])
        writer.flush()
        table.compact()
        assert _rows(held) == wanted
        assert held.count_rows() == len(wanted)
        assert _rows(table.scan()) != wanted


@pytest.mark.repro("reads-02b")
@pytest.mark.parametrize("way", [way for way, (schema, ids, *_) in WAYS.items() if schema is KEYED and ids])
def test_a_read_that_a_compaction_overtakes_between_two_batches_is_not_torn(tmp_path: Path, way: str) -> None:
    """Names move from row to row, two at a time: each state has every name once, a mixture has not."""
    schema, _, options, prepare = WAYS[way]
    uri, count = str(tmp_path / "t"), 300
    names = [f"name {number}" for number in range(count)]
    lance.write_dataset(pa.table([range(count), names], schema=schema), uri, max_rows_per_file=count // 6, **options)
    prepare(uri)
    table = mw.enable(uri, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:

        def exchange(first: int, last: int) -> None:
            names[first], names[last] = names[last], names[first]
            writer.put([{"id": number, "note": names[number]} for number in (first, last)])
            writer.flush()

        for turn in range(1, 7):
            exchange(turn, 100 + turn)  # fresh rows come first, so that the base is not begun when the next ones come
            batches = table.scan(["note"]).to_batches()
            seen = [next(batches)]
            for partner in (turn, 100 + turn):
                exchange(count - turn, partner)
                table.compact()
                seen.extend(islice(batches, 2))
            seen.extend(batches)
            assert len(seen) > 3, "the compactions came in the middle"
            assert sorted(pa.Table.from_batches(seen)["note"].to_pylist()) == sorted(names)
            assert sorted(table.lookup(list(range(count)))["note"].to_pylist()) == sorted(names)


@pytest.mark.repro("reads-02c")
@pytest.mark.parametrize("way", [way for way, (schema, *_) in WAYS.items() if schema is KEYED])
def test_a_lookup_finds_every_row_of_its_snapshot_while_its_process_compacts(tmp_path: Path, way: str) -> None:
    table = _table(tmp_path / "t", way)
    newest = BaseTable.open(resolve(table.uri))
    assert newest is not None
    base = NewestBase(newest)
    source = TierSource(base)
    keys = pa.record_batch([pa.array([1, 2, 3])], names=["id"])
    with table.writer(compaction=None) as writer:
        for _ in range(12):  # enough for an index of key hashes
            lookup_rows(source.capture(), keys, ["id"])
        snapshot = source.capture()
        writer.put([{"id": 1, "note": "new"}])
        writer.flush()
        Compactor(newest.location, base).run()
        found = lookup_rows(snapshot, keys, ["id", "note"]).to_pylist()
    assert sorted(row["id"] for row in found) == [1, 2, 3]
    assert {row["note"] for row in found} == {"base"}


@pytest.mark.repro("reads-02")
@pytest.mark.parametrize(
    "move",
    [
        lambda dataset: dataset.delete("id = 1"),
        lambda dataset: dataset.update({"note": "'other'"}),
        lambda dataset: (
            dataset.merge_insert("id").when_matched_update_all().execute(pa.table([[1], ["merged"]], schema=KEYED))
        ),
        lambda dataset: dataset.add_columns(pa.field("more", pa.int64())),
        lambda dataset: dataset.optimize.compact_files(),
    ],
    ids=["delete", "update", "merge_insert", "add_columns", "compact_files"],
)
def test_commit_through_the_dataset_of_a_table_moves_no_read(tmp_path: Path, move: Callable[[Any], object]) -> None:
    table = _table(tmp_path / "t", "by hand")
    held = table.scan()
    wanted = _rows(table.scan())
    mine = table.dataset
    move(mine)
    assert _rows(held) == wanted
    assert table.dataset is not table.dataset
    assert table.scan().snapshot.base.version == lance.dataset(table.uri).version


# Reads of a table whose base versions Lance cleans up: they start over, or say that they cannot.

WITH_VECTORS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("vector", pa.list_(pa.float32(), 4)),
    ]
)
ROWS = 400


def _vector_rows(numbers: Any, text: str) -> pa.Table:
    ids = list(numbers)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.tile(np.float32(ids), (4, 1)).T.ravel()), 4)
    return pa.table([ids, [f"{text} {number}" for number in ids], vectors], schema=WITH_VECTORS)


def _vector_table(place: Path) -> mw.Table:
    table = mw.create_table(
        str(place), WITH_VECTORS, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    for part in range(4):
        rows = _vector_rows(range(part * 100, part * 100 + 100), "old")
        lance.write_dataset(rows.cast(table.schema), table.uri, mode="append")
    return table


def _clean_up(table: mw.Table) -> None:
    """Every file of the base table is written anew, and what was there before is removed at once."""
    lance.dataset(table.uri).delete("id = 1")
    lance.dataset(table.uri).optimize.compact_files(materialize_deletions_threshold=0.0)
    lance.dataset(table.uri).cleanup_old_versions(older_than=dt.timedelta(0), delete_unverified=True)


@pytest.mark.repro("reads-11")
@pytest.mark.parametrize(
    "read",
    [
        lambda scan: scan.to_table().num_rows,
        lambda scan: scan.count_rows(),
        lambda scan: sum(batch.num_rows for batch in scan.to_batches()),
        lambda scan: scan.to_reader().read_all().num_rows,
    ],
    ids=["to_table", "count_rows", "to_batches", "to_reader"],
)
@pytest.mark.parametrize("condition", [None, "text <> 'nothing'"])
def test_scan_of_a_cleaned_up_version_restarts(
    tmp_path: Path, read: Callable[[Any], int], condition: str | None
) -> None:
    table = _vector_table(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        held = table.scan(filter=condition)
        writer.put(_vector_rows([1000, 1001], "new"))
        _clean_up(table)
        assert read(held) in (ROWS, ROWS + 1)  # what it captured, if Lance still has it in memory, or what is there now
        assert read(table.scan(filter=condition)) == ROWS + 1


def test_a_reader_that_has_handed_out_rows_says_that_its_version_is_gone(tmp_path: Path) -> None:
    table = _vector_table(tmp_path / "t")
    wide = _vector_rows(range(5000, 45000), "x" * 400)
    lance.write_dataset(wide.cast(table.schema), table.uri, mode="append", max_rows_per_file=2000)
    with table.writer(compaction=None) as writer:
        writer.put(_vector_rows([1000], "new"))
        batches = table.scan().to_batches()
        seen = next(batches).num_rows  # from memory
        _clean_up(table)
        assert seen == 1
        with pytest.raises(mw.CollectedError, match="read again"):
            list(batches)
        assert table.count_rows() == ROWS + 40000


@pytest.mark.repro("reads-11")
@pytest.mark.parametrize("known", [False, True])
def test_lookups_and_searches_start_over(tmp_path: Path, known: bool) -> None:
    """With `known` the process has asked before, so that keys and texts of an earlier version are in memory."""
    table = _vector_table(tmp_path / "t")
    ask: list[Callable[[], int]] = [
        lambda: table.lookup([2, 150, 399, 1000]).num_rows,
        lambda: table.search(vector=[150.0] * 4, k=3).num_rows,
        lambda: table.search(text="old", column="text", k=3).num_rows,
        lambda: table.count_rows("id >= 0"),
    ]
    for question in ask:
        if known:
            assert question()
        _clean_up(table)
        assert question() == (ROWS - 1 if question is ask[-1] else 3)


def test_a_file_of_the_newest_version_that_is_missing_is_damage(tmp_path: Path) -> None:
    table = _vector_table(tmp_path / "t")
    shutil.rmtree(Path(table.uri, "data"))
    with pytest.raises(mw.CorruptDataError, match="newest version"):
        mw.open_table(table.uri).scan(filter="text = 'old 5'").to_table()
