"""A compaction beside somebody who commits to the base table all the time: it gets through, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from tests.harness.points import run_once_at
from tests.kit.compaction import unheld_files, with_key

KEYS = 20_000


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> Iterator[None]:
    yield
    crash_points.install(None)


def _schema(key: pa.DataType) -> pa.Schema:
    return with_key(pa.schema([("id", key), ("v", pa.string())]))


def _ids(key: pa.DataType, numbers: range) -> pa.Array:
    return pa.array([f"key{number:09d}" for number in numbers]) if key == pa.string() else pa.array(numbers, key)


def _table(place: Path, key: pa.DataType) -> mw.Table:
    """Every second row of the base is replaced by what waits for a compaction, and as many are new."""
    schema = _schema(key)
    rows = pa.table([_ids(key, range(KEYS)), ["old"] * KEYS], schema=schema)
    lance.write_dataset(rows, str(place), max_rows_per_file=KEYS // 100)
    table = mw.enable(str(place), sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        writer.put(pa.table([_ids(key, range(0, 2 * KEYS, 2)), ["new"] * KEYS], schema=schema))
    return table


@contextmanager
def _committing(commit: Callable[[int], object], wait_seconds: float) -> Iterator[list[int]]:
    """Somebody who commits, waits and commits; the list tells how often."""
    done, stop = [], threading.Event()

    def run() -> None:
        while not stop.wait(wait_seconds):
            try:
                commit(len(done))
            except OSError:  # Lance gave up a commit that lost too often
                continue
            done.append(len(done))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


@pytest.mark.repro("reads-07")
@pytest.mark.parametrize("key", [pa.int64(), pa.string()])
def test_a_compaction_gets_through_beside_a_plain_writer(tmp_path: Path, key: pa.DataType) -> None:
    table = _table(tmp_path / "t", key)
    schema = _schema(key)

    def commit(number: int) -> None:
        odd = 2 * number + 1
        name = f"'key{odd:09d}'" if key == pa.string() else str(odd)
        if number % 3 == 0:
            lance.dataset(table.uri).delete(f"id = {name}")
        elif number % 3 == 1:
            lance.dataset(table.uri).update({"v": "'updated'"}, where=f"id = {name}")
        else:
            rows = pa.table([_ids(key, range(10 * KEYS + number, 10 * KEYS + number + 1)), ["direct"]], schema=schema)
            lance.write_dataset(rows, table.uri, mode="append")

    with _committing(commit, 0.01) as commits:
        assert table.compact().generations == 1
        while len(commits) < 6:
            assert not threading.Event().wait(0.01)
    found = lance.dataset(table.uri).to_table()
    assert len(found["id"].unique()) == found.num_rows
    values = found["v"].to_pylist()
    assert values.count("new") == KEYS
    assert values.count("direct") == len([n for n in commits if n % 3 == 2])
    assert values.count("old") + values.count("updated") == KEYS // 2 - len([n for n in commits if n % 3 == 0])
    left = unheld_files(table.uri)
    assert {
        name for name in left if not name.endswith(".arrow")
    } == set()  # such vectors are Lance's, of changes that lost


class _StoppedError(Exception):
    """The compactor ends here."""


def _stop() -> None:
    raise _StoppedError


@pytest.mark.parametrize("point", ["compact.after_fragments", "compact.before_manifest"])
def test_a_compaction_that_fails_before_its_commit_takes_its_files_along(tmp_path: Path, point: str) -> None:
    table = _table(tmp_path / "t", pa.int64())
    happened = run_once_at(point, _stop)
    with pytest.raises(_StoppedError):
        table.compact()
    assert happened
    assert unheld_files(table.uri) == set()
    table.compact()
    assert lance.dataset(table.uri).count_rows() == KEYS // 2 + KEYS


def test_a_compaction_that_another_one_overtook_takes_its_files_along(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", pa.string())
    run_once_at("compact.before_manifest", lambda: mw.open_table(table.uri).compact())
    assert table.compact().conflicts == 1
    assert unheld_files(table.uri) == set()
    assert lance.dataset(table.uri).count_rows() == KEYS // 2 + KEYS
