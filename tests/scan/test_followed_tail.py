"""Fresh reads beside a writer of another process: the tail is read once and followed, and answers stay right."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import CorruptDataError
from lance_memwal.process.cache import CACHE
from tests.kit.tables import watched_table

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
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        least = 0
        try:
            while not stop.is_set():
                found = elsewhere.table.count_rows()
                assert found >= least
                least = found
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 40):
        elsewhere.put(number)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures
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
