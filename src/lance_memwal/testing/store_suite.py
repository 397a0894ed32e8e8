"""What every store must do, as tests: a new back end inherits them and names its store.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store(self) -> ObjectStore:
            return MyStore(...)

Owns the executable form of guarantees S1, S2 and S4 to S6 of `lance_memwal.store.port` (S3, power loss, needs a power switch).
Each test gets a store that holds nothing yet.
"""
# ruff: noqa: S101 - this module is tests

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError
from lance_memwal.store.port import ObjectStore, PutResult

_MIB = 1 << 20
_DAY_MS = 24 * 3600 * 1000
_ODD_NAMES = (
    "a b",
    "a+b",
    "x=y",
    "%41",
    "a%2Fb",
    "a&b",
    "it's",
    "~t",
    "a@b",
    "(b)",
    "a,b",
    ".hidden",
    "-",
    "_",
    "A.B..c",
)


class StoreSuite:
    """Inherit, and override the `store` fixture."""

    race_keys = 40
    racers = 8
    visibility_rounds = 20

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store of the back end under test."""
        raise NotImplementedError("override the `store` fixture")

    def test_what_was_put_is_read_back(self, store: ObjectStore) -> None:
        """The simplest promise."""
        assert store.put_new("wal/one", b"bytes", sync=True) is PutResult.CREATED
        assert store.get("wal/one") == b"bytes"

    def test_create_only_put_never_overwrites(self, store: ObjectStore) -> None:
        """S1: the second creator is told, and changes nothing, whether its bytes differ or not."""
        store.put_new("wal/one", b"first")
        for data in (b"second", b"first", b""):
            with pytest.raises(ObjectExistsError) as refused:
                store.put_new("wal/one", data)
            assert refused.value.path == "wal/one"
            assert store.get("wal/one") == b"first"

    def test_one_of_many_racing_creators_wins(self, store: ObjectStore) -> None:
        """S1: exactly one creator per path, and the object holds its bytes."""
        start = threading.Barrier(self.racers)

        def race(racer: int) -> list[int]:
            won = []
            for key in range(self.race_keys):
                start.wait(timeout=60)
                try:
                    store.put_new(f"race/{key}", b"racer %d" % racer)
                except ObjectExistsError:
                    continue
                won.append(key)
            return won

        with ThreadPoolExecutor(self.racers) as pool:
            wins = list(pool.map(race, range(self.racers)))
        assert sorted(key for won in wins for key in won) == list(range(self.race_keys))
        for racer, won in enumerate(wins):
            assert [store.get(f"race/{key}") for key in won] == [b"racer %d" % racer] * len(won)

    def test_an_object_appears_whole_or_not_at_all(self, store: ObjectStore) -> None:
        """S1: readers that hammer a path see no part of it, by get or by list."""
        sizes = {f"whole/{number}": _MIB + number for number in range(self.visibility_rounds)}

        def look() -> int:
            seen = 0
            for meta in store.list("whole"):
                assert meta.size_bytes == sizes[meta.path]
            for path, size in sizes.items():
                try:
                    data = store.get(path)
                except ObjectNotFoundError:
                    continue
                assert data == b"x" * size
                seen += 1
            return seen

        def write() -> None:
            for path, size in sizes.items():
                store.put_new(path, b"x" * size)

        _while_running(write, look)
        assert look() == len(sizes)

    def test_a_replaced_object_is_old_or_new_but_never_mixed(self, store: ObjectStore) -> None:
        """`put` is atomic."""
        versions = {bytes([number]) * (64 * 1024) for number in range(self.visibility_rounds)}
        store.put("hint", min(versions))

        def look() -> int:
            assert store.get("hint") in versions
            return 1

        def write() -> None:
            for version in sorted(versions):
                store.put("hint", version, sync=True)

        _while_running(write, look)
        assert store.get("hint") == max(versions)

    def test_ranges_end_where_the_object_ends(self, store: ObjectStore) -> None:
        """`get_range` is short at the end, and empty past it."""
        store.put_new("object", b"0123456789")
        assert store.get_range("object", 0, 10) == b"0123456789"
        assert store.get_range("object", 3, 4) == b"3456"
        assert store.get_range("object", 8, 100) == b"89"
        assert store.get_range("object", 10, 5) == b""
        assert store.get_range("object", 1000, 5) == b""
        assert store.get_range("object", 3, 0) == b""

    def test_tails_begin_where_the_object_begins(self, store: ObjectStore) -> None:
        """`get_tail` is the whole object if that is shorter."""
        store.put_new("object", b"0123456789")
        assert store.get_tail("object", 3) == b"789"
        assert store.get_tail("object", 10) == b"0123456789"
        assert store.get_tail("object", 1000) == b"0123456789"
        assert store.get_tail("object", 0) == b""

    def test_negative_ranges_are_refused(self, store: ObjectStore) -> None:
        """A negative number is a mistake of the caller, not a way to count from the end."""
        store.put_new("object", b"0123456789")
        with pytest.raises(InvalidInputError):
            store.get_range("object", -1, 5)
        with pytest.raises(InvalidInputError):
            store.get_range("object", 1, -5)
        with pytest.raises(InvalidInputError):
            store.get_tail("object", -1)

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        """Zero bytes are bytes."""
        store.put_new("empty", b"")
        assert store.get("empty") == b""
        assert store.get_tail("empty", 8) == b""
        assert store.get_range("empty", 0, 8) == b""
        assert store.head("empty").size_bytes == 0
        assert [(meta.path, meta.size_bytes) for meta in store.list("")] == [("empty", 0)]
        with pytest.raises(ObjectExistsError):
            store.put_new("empty", b"no longer")

    def test_a_large_object_comes_back_byte_for_byte(self, store: ObjectStore) -> None:
        """Large means larger than any chunk that a client might split."""
        data = bytes(range(256)) * (8 * _MIB // 256)
        assert store.put_new("large", data) is PutResult.CREATED
        assert store.get("large") == data
        assert store.get_range("large", 5 * _MIB - 3, 8) == data[5 * _MIB - 3 : 5 * _MIB + 5]
        assert store.get_tail("large", 1000) == data[-1000:]
        assert store.head("large").size_bytes == 8 * _MIB

    def test_absence_is_a_typed_answer_of_every_read(self, store: ObjectStore) -> None:
        """S4: `ObjectNotFoundError`, with the path, also below an object and for a directory."""
        store.put_new("there/is/one", b"1")
        for path in ("nothing", "there/is/two", "there/is", "there/is/one/below"):
            for read in (
                store.get,
                store.head,
                lambda path: store.get_range(path, 0, 4),
                lambda path: store.get_tail(path, 4),
            ):
                with pytest.raises(ObjectNotFoundError) as absent:
                    read(path)
                assert absent.value.path == path

    def test_head_tells_size_and_time(self, store: ObjectStore) -> None:
        """The time is the store's, so it is only near ours."""
        store.put_new("wal/one", b"12345")
        meta = store.head("wal/one")
        assert (meta.path, meta.size_bytes) == ("wal/one", 5)
        assert abs(meta.modified_ms - time.time() * 1000) < _DAY_MS

    def test_list_shows_every_acknowledged_object_at_any_depth(self, store: ObjectStore) -> None:
        """S5: at once after the put, and nothing beside the directory asked for."""
        put = {"t/a": 1, "t/b/c": 2, "t/b/d/e": 3, "t/bb": 4, "tt/x": 5}
        for path, size in put.items():
            store.put_new(path, b"x" * size)
            assert path in {meta.path for meta in store.list("")}
        assert {meta.path: meta.size_bytes for meta in store.list("")} == put
        assert {meta.path for meta in store.list("t")} == {"t/a", "t/b/c", "t/b/d/e", "t/bb"}
        assert {meta.path for meta in store.list("t/b")} == {"t/b/c", "t/b/d/e"}
        assert {meta.path for meta in store.list("t/b/")} == {"t/b/c", "t/b/d/e"}
        assert store.list("absent") == []

    def test_list_names_shows_one_level(self, store: ObjectStore) -> None:
        """Objects and directories alike, by their last name only."""
        for path in ("t/a", "t/b/c", "t/b/d/e", "u"):
            store.put_new(path, b"x")
        assert sorted(store.list_names("")) == ["t", "u"]
        assert sorted(store.list_names("t")) == ["a", "b"]
        assert sorted(store.list_names("t/b")) == ["c", "d"]
        assert store.list_names("absent") == []

    def test_list_is_complete_beyond_one_page(self, store: ObjectStore) -> None:
        """S5: services list a thousand at a time; a thousand and a few are all here."""
        count = 1003
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: store.put_new(f"many/{number:05d}", b""), range(count)))
        expected = [f"{number:05d}" for number in range(count)]
        assert sorted(store.list_names("many")) == expected
        assert sorted(meta.path for meta in store.list("many")) == [f"many/{name}" for name in expected]

    def test_delete_is_idempotent_and_final(self, store: ObjectStore) -> None:
        """S6: absent is fine; what is deleted is neither read nor listed, and can be created again."""
        store.put_new("t/a", b"1")
        store.put_new("t/b", b"2")
        store.delete("t/a")
        store.delete("t/a")
        store.delete("never/was")
        with pytest.raises(ObjectNotFoundError):
            store.get("t/a")
        assert store.list_names("t") == ["b"]
        assert store.put_new("t/a", b"again") is PutResult.CREATED

    def test_the_root_goes_if_it_holds_nothing(self, store: ObjectStore) -> None:
        """ "" is the root: with objects in it, it stays; without any it goes, and comes back with the next one."""
        store.put_new("t/a", b"1")
        store.delete("")
        assert store.get("t/a") == b"1"
        store.delete("t/a")
        store.delete("")
        store.delete("")
        assert store.list("") == []
        assert store.put_new("t/a", b"again") is PutResult.CREATED

    def test_a_directory_goes_with_its_last_object(self, store: ObjectStore) -> None:
        """Directories are only parts of names: none stays behind."""
        store.put_new("shard/generation/data/x", b"1")
        store.put_new("shard/wal/y", b"2")
        store.delete("shard/generation/data/x")
        assert store.list_names("shard") == ["wal"]
        store.delete("shard/wal/y")
        assert store.list_names("") == []
        store.put_new("shard/wal/z", b"3")
        assert store.get("shard/wal/z") == b"3"

    @pytest.mark.parametrize("name", _ODD_NAMES)
    def test_odd_names_are_names_like_any_other(self, store: ObjectStore, name: str) -> None:
        """No escaping comes in between."""
        path = f"odd/{name}/{name}"
        store.put_new(path, name.encode())
        assert store.get(path) == name.encode()
        assert store.list_names("odd") == [name]
        assert [meta.path for meta in store.list("odd")] == [path]
        store.delete(path)
        assert store.list("") == []

    @pytest.mark.parametrize("path", ["../escape", "a/../../escape", "/absolute", "a//b", "a/./b", "", ".."])
    def test_paths_that_are_no_paths_are_refused(self, store: ObjectStore, path: str) -> None:
        """Nothing outside the root can be named; the root itself can only be deleted."""
        calls = [store.get, lambda path: store.put_new(path, b""), lambda path: store.put(path, b"")]
        for call in [*calls, store.delete] if path else calls:
            with pytest.raises(InvalidInputError):
                call(path)

    def test_many_readers_read_the_same_bytes(self, store: ObjectStore) -> None:
        """Reads do not disturb each other."""
        objects = {f"shared/{number}": bytes([number]) * 10_000 for number in range(10)}
        for path, data in objects.items():
            store.put_new(path, data)

        def read(round_number: int) -> bool:
            path = f"shared/{round_number % 10}"
            return store.get(path) == objects[path] and store.get_tail(path, 10) == objects[path][-10:]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(80)))

    def test_a_tree_can_be_made_durable(self, store: ObjectStore) -> None:
        """`sync_tree` takes directories and single objects, and leaves them as they are."""
        store.put_new("g/data/a", b"1")
        store.put_new("g/b", b"2")
        store.sync_tree("g")
        store.sync_tree("g/b")
        assert store.get("g/data/a") + store.get("g/b") == b"12"


def _while_running(write: Callable[[], None], look: Callable[[], int]) -> None:
    """Call `look` from two threads, at least once each, until `write` is done."""
    done = threading.Event()

    def watch() -> int:
        seen = look()
        while not done.is_set():
            seen += look()
        return seen

    with ThreadPoolExecutor(3) as pool:
        watchers = [pool.submit(watch) for _ in range(2)]
        try:
            pool.submit(write).result(timeout=100)
        finally:
            done.set()
        for watcher in watchers:
            watcher.result(timeout=100)
