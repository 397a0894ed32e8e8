"""One budget of bytes for all that is kept, and one setting."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE, DEFAULT_CACHE_BYTES, Cache
from tests.kit.writers import in_thread


@dataclass
class Value:
    size_bytes: int


@pytest.fixture(autouse=True)
def _same_limit_after() -> Iterator[None]:
    limit = CACHE.limit_bytes
    yield
    CACHE.limit_bytes = limit


def test_the_least_recently_used_goes_first_whatever_its_kind() -> None:
    cache = Cache(100)
    for kind in "abc":
        cache.keep((kind, 1), kind, 30)
    assert cache.find(("a", 1)) == "a"
    cache.keep(("d", 1), "d", 30)
    assert [cache.find((kind, 1)) for kind in "abcd"] == ["a", None, "c", "d"]
    assert cache.size_bytes == 90


def test_what_is_larger_than_the_limit_is_not_kept_and_drives_nothing_out() -> None:
    cache = Cache(100)
    cache.keep(("small",), 1, 40)
    cache.keep(("large",), 2, 101)
    assert (cache.find(("small",)), cache.find(("large",)), cache.size_bytes) == (1, None, 40)


def test_a_slot_holds_what_was_made_of_the_newest_thing() -> None:
    cache, made = Cache(100), list[int]()

    def value() -> Value:
        made.append(len(made))
        return Value(10)

    first = cache.fetch(("slot",), value, made_of="v1")
    assert cache.fetch(("slot",), value, made_of="v1") is first
    second = cache.fetch(("slot",), value, made_of="v2")
    assert second is not first
    assert cache.find(("slot",), "v1") is None
    assert (made, cache.size_bytes) == ([0, 1], 10)


def test_a_value_that_grows_is_counted_anew_and_not_kept_if_it_outgrows_the_limit() -> None:
    cache = Cache(100)
    cache.keep(("other",), 0, 50)
    cache.keep(("grows",), "value", 10)
    cache.keep(("grows",), "value", 60)
    assert (cache.find(("grows",)), cache.find(("other",)), cache.size_bytes) == ("value", None, 60)
    cache.keep(("grows",), "value", 101)
    assert (cache.find(("grows",)), cache.size_bytes) == (None, 0)


def test_what_is_dropped_lets_go_and_what_is_kept_again_does_not() -> None:
    cache, gone = Cache(100), list[str]()
    first, second = object(), object()
    cache.keep(("a",), first, 40, let_go=lambda: gone.append("first"))
    cache.keep(("a",), first, 60, let_go=lambda: gone.append("first"))
    assert gone == []
    cache.keep(("a",), second, 60, let_go=lambda: gone.append("second"))
    assert gone == ["first"]
    cache.keep(("b",), 1, 50)
    assert gone == ["first", "second"]
    cache.keep(("c",), 1, 50, let_go=lambda: gone.append("third"))
    cache.clear()
    assert gone == ["first", "second", "third"]


def test_a_fact_is_learned_once_also_if_it_is_none() -> None:
    cache, asked = Cache(10_000), list[int]()
    for _ in range(3):
        assert cache.fact(("fact",), lambda: asked.append(1)) is None
    assert asked == [1]


def test_a_smaller_limit_holds_at_once() -> None:
    cache = Cache(100)
    for number in range(10):
        cache.keep((number,), number, 10)
    cache.limit_bytes = 35
    assert cache.size_bytes == 30
    assert [number for number in range(10) if cache.find((number,)) is not None] == [7, 8, 9]


def test_threads_never_lose_count() -> None:
    cache = Cache(1000)

    def work(seed: int) -> None:
        for number in range(2000):
            slot = ("n", (seed * number) % 97)
            cache.fetch(slot, lambda: Value(13))
            if number % 50 == 0:
                cache.keep(slot, Value(7), 7)

    for call in [in_thread(partial(work, seed)) for seed in (3, 5, 7, 11)]:
        call.result()
    assert 0 < cache.size_bytes <= 1000
    cache.limit_bytes = 0
    assert cache.size_bytes == 0


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", None, True])
def test_a_limit_is_a_number_of_bytes(wrong: object) -> None:
    with pytest.raises(mw.InvalidInputError, match="limit_bytes"):
        mw.set_cache_bytes(wrong)  # type: ignore[arg-type]


def _in_child(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout.strip()


def test_the_environment_says_the_limit_when_it_is_first_used() -> None:
    show = "from lance_memwal.process.cache import CACHE; print(CACHE.limit_bytes)"
    assert _in_child(show) == str(DEFAULT_CACHE_BYTES)
    assert _in_child(show, LANCE_MEMWAL_CACHE_BYTES="12345") == "12345"
    late = "import os, lance_memwal; os.environ['LANCE_MEMWAL_CACHE_BYTES'] = '77'; "
    assert _in_child(late + show) == "77"
    wrong = "import lance_memwal as mw\ntry:\n    " + show.replace("; ", "\n    ")
    assert "LANCE_MEMWAL_CACHE_BYTES" in _in_child(
        f"{wrong}\nexcept mw.InvalidInputError as error:\n    print(error)", LANCE_MEMWAL_CACHE_BYTES="much"
    )


def test_a_forked_child_begins_with_nothing_and_waits_for_no_lock() -> None:
    code = """
import os, threading
from lance_memwal.process.cache import CACHE
CACHE.keep(("a",), 1, 10)
held, go = threading.Event(), threading.Event()
def hold():
    with CACHE._lock:
        held.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    CACHE.keep(("b",), 2, 5)
    os._exit(0 if (CACHE.find(("a",)), CACHE.find(("b",)), CACHE.size_bytes) == (None, 2, 5) else 1)
go.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), CACHE.find(("a",)))
"""
    assert _in_child(code) == "0 1"


def test_reads_of_a_table_count_and_the_setting_bounds_them(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", sharding=mw.Unsharded())
    with table.writer(compaction=None) as writer:
        writer.put({"id": list(range(2000)), "v": ["x" * 20] * 2000})
    CACHE.clear()
    assert table.stats(live_rows=False).cache_bytes == 0
    assert table.get(7) == {"id": 7, "v": "x" * 20}
    assert table.scan().count_rows() == 2000
    held = table.stats().cache_bytes
    assert 2000 * 20 < held < 10_000_000
    mw.set_cache_bytes(1000)
    assert table.stats().cache_bytes <= 1000
    assert table.get(7) == {"id": 7, "v": "x" * 20}
    assert table.stats().cache_bytes <= 1000
    mw.set_cache_bytes(0)
    assert table.scan().count_rows() == 2000
    assert table.stats().cache_bytes == 0
