"""What reads of many shards, many SSTables and large tables hold in memory."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE, Cache
from lance_memwal.read.fresh import fresh_index
from lance_memwal.sstable.read import SsTableReader, open_sstable
from lance_memwal.sstable.sidecar import PkSidecar
from lance_memwal.store.location import resolve
from tests.harness.profile import scaled
from tests.kit.tables import create
from tests.kit.writers import in_thread

SCHEMA = pa.schema([pa.field("tenant", pa.int32(), False), pa.field("v", pa.int64())])


def make(place: Path, tenants: int) -> mw.Table:
    table = mw.create_table(str(place), SCHEMA, primary_key="tenant", sharding=mw.Identity("tenant"))
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put([{"tenant": tenant, "v": tenant} for tenant in range(tenants)])
    return table


def readers_of(table: mw.Table) -> list[SsTableReader]:
    location, found = resolve(table.uri), []
    for shard in table.shards():
        manifest = mw.ShardManifestStore(table.uri, shard.shard_id).read_latest()
        assert manifest is not None
        found += [open_sstable(location, shard.shard_id, sstable) for sstable in manifest.sstables]
    return found


def lines_of_a_cold_count(place: Path, tenants: int) -> int:
    """How many lines of the index cache a first count of the rows executes."""
    table = make(place, tenants)
    CACHE.clear()
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith("lance_memwal/read/fresh.py"):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert table.count_rows() == tenants
    finally:
        sys.settrace(before)
    return lines


def test_the_work_per_shard_does_not_grow_with_their_number(tmp_path: Path) -> None:
    few, many = (lines_of_a_cold_count(tmp_path / str(number), number) for number in (8, 64))
    assert many <= few * 64 / 8 * 1.5


def test_indexes_that_are_replaced_or_dropped_do_not_count(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 3)
    first, second, third = readers_of(table)
    size_bytes = fresh_index([first]).size_bytes
    cache = Cache(5 * size_bytes // 2)  # two, and what a list with hidden rows has more
    kept = fresh_index([second], cache)
    for _ in range(10):
        fresh_index([first], cache)
        fresh_index([first, first], cache)  # another list of the same shard takes its place
    assert fresh_index([second], cache) is kept
    fresh_index([third], cache)  # a third one is above the limit: the list of the first shard goes
    assert fresh_index([second], cache) is kept
    fresh_index([first], cache)
    fresh_index([third], cache)
    assert fresh_index([second], cache) is not kept


def test_a_read_does_not_wait_for_the_keys_of_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, other = make(tmp_path / "slow", 1), make(tmp_path / "other", 1)
    CACHE.clear()
    reached, released, all_entries = threading.Event(), threading.Event(), PkSidecar.all_entries

    def held(sidecar: PkSidecar) -> Any:
        if threading.current_thread().name == "slow":
            reached.set()
            assert released.wait(60)
        return all_entries(sidecar)

    monkeypatch.setattr(PkSidecar, "all_entries", held)
    found: list[int] = []
    first = threading.Thread(target=lambda: found.append(slow.to_arrow().num_rows), name="slow")
    first.start()
    assert reached.wait(60)
    second = threading.Thread(target=lambda: found.append(other.to_arrow().num_rows))
    second.start()
    second.join(20)
    is_held_up = second.is_alive()
    released.set()
    first.join()
    second.join()
    assert not is_held_up
    assert found == [1, 1]


DIMENSION = 128
LIMIT_MB = 320
TABLE_MB = scaled(ci=700, prove=5 * LIMIT_MB)
VECTORS = pa.schema(
    [
        pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"}),
        pa.field("vector", pa.list_(pa.float32(), DIMENSION)),
    ]
)
READER = """
import resource, sys
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(batch.num_rows for batch in table.scan())
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def vector_rows(total: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(3)
    for start in range(0, total, 8192):
        count = min(8192, total - start)
        vectors = pa.array(rng.random(count * DIMENSION, dtype=np.float32))
        columns = [pa.array(np.arange(start, start + count)), pa.FixedSizeListArray.from_arrays(vectors, DIMENSION)]
        yield pa.record_batch(columns, schema=VECTORS)


@pytest.mark.scaled
def test_a_scan_of_a_table_larger_than_its_limit_stays_within_the_limit(tmp_path: Path) -> None:
    uri, total = str(tmp_path / "t"), TABLE_MB * 1024 * 1024 // (DIMENSION * 4)
    lance.write_dataset(pa.RecordBatchReader.from_batches(VECTORS, vector_rows(total)), uri, max_rows_per_file=100_000)
    writer = mw.enable(uri).shard_writer(fsync=False)
    writer.put({"id": [1, 2, total], "vector": [[0.0] * DIMENSION] * 3})
    done = subprocess.run([sys.executable, "-c", READER, uri], capture_output=True, text=True, timeout=110, check=True)
    seen, grown_mb = map(int, done.stdout.split())
    assert seen == total + 1
    assert grown_mb < LIMIT_MB
    writer.abort()


# A scan streams an SSTable that is too large to be kept: its memory is not that of the SSTable.

GENERATION_MB = scaled(ci=600, prove=4 * LIMIT_MB)
UNKEYED_VECTORS = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSION))])
SAMPLER = """
import resource, sys
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = [number for batch in table.scan() for number in batch.column("id").to_pylist()[::1000]]
print(len(ids), sum(ids), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.scaled
def test_a_scan_of_a_generation_larger_than_its_limit_stays_within_the_limit(tmp_path: Path) -> None:
    uri, total = str(tmp_path / "t"), GENERATION_MB * 1024 * 1024 // (DIMENSION * 4)
    defaults = {"fsync": False, "max_entry_bytes": 1 << 20}  # a larger put becomes a generation of its own
    table = mw.create_table(uri, UNKEYED_VECTORS, primary_key="id", sharding=mw.Unsharded(), writer_defaults=defaults)
    vectors = pa.array(np.random.default_rng(3).random(total * DIMENSION, dtype=np.float32))
    with table.writer(compaction=None) as writer:
        rows = [np.arange(total), pa.FixedSizeListArray.from_arrays(vectors, DIMENSION)]
        writer.put(pa.table(rows, schema=table.schema))
    assert [info.generations for info in table.shards()] == [(1,)]
    done = subprocess.run([sys.executable, "-c", SAMPLER, uri], capture_output=True, text=True, timeout=110, check=True)
    seen, _, grown_mb = map(int, done.stdout.split())
    assert seen >= total // 1000
    assert mw.open_table(uri).count_rows() == total
    assert grown_mb < LIMIT_MB


# What reads keep of SSTables stays within its limit, whatever was read in which order.

GENERATIONS, ROWS = 12, 200
LIMIT_BYTES = 200_000  # four generations


@pytest.fixture
def _a_small_limit() -> Iterator[None]:
    limit = CACHE.limit_bytes
    CACHE.clear()
    CACHE.limit_bytes = LIMIT_BYTES
    yield
    CACHE.limit_bytes = limit
    CACHE.clear()


def _table(place: Path) -> mw.Table:
    """Every generation has keys of its own, and all have one in common."""
    table = create(str(place))
    with table.writer(compaction=None, fsync=False) as writer:
        for number in range(GENERATIONS):
            keys = [0, *range(number * ROWS + 1, (number + 1) * ROWS)]
            writer.put([{"id": key, "v": number, "s": "x" * 100} for key in keys])
            writer.flush()
    return table


@pytest.mark.usefixtures("_a_small_limit")
@pytest.mark.repro("reads-09")
def test_rows_and_keys_that_are_kept_never_pass_the_limit(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    want = GENERATIONS * (ROWS - 1) + 1
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(2):
        assert table.count_rows() == want
        assert table.scan().to_table().num_rows == want
        assert sorted(table.lookup([0, 5, ROWS + 5], ["v"])["v"].to_pylist()) == [0, 1, GENERATIONS - 1]
        assert 0 < CACHE.size_bytes <= LIMIT_BYTES
    gc.collect()
    assert pa.total_allocated_bytes() - before < 2 * LIMIT_BYTES, "what was let go is not held by somebody else"
    table.compact()
    assert table.count_rows() == want
    assert CACHE.size_bytes <= LIMIT_BYTES


@pytest.mark.usefixtures("_a_small_limit")
def test_threads_that_push_each_others_rows_out_read_what_is_there(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")

    def read(first: int) -> None:
        for number in range(15):
            at = (first + number) % GENERATIONS
            rows = table.scan(["id", "v"], filter=f"id > {at * ROWS} and id < {(at + 1) * ROWS}").to_table()
            assert rows["v"].to_pylist() == [at] * (ROWS - 1)
            assert set(table.lookup([0, at * ROWS + 7], ["v"])["v"].to_pylist()) == {GENERATIONS - 1, at}

    for call in [in_thread(partial(read, number * 3)) for number in range(4)]:
        call.result(120)
    assert CACHE.size_bytes <= LIMIT_BYTES


# Small SSTables of a shard are read together, a batch for many of them: what a scan shows is what it shows of each
# alone.

WITH_KIND = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("kind", pa.dictionary(pa.int8(), pa.string()))]
)
PLAIN = pa.schema(list(WITH_KIND)[:2])
SMALL_GENERATIONS, KEYS = 30, 40
Model = dict[int, tuple[int, int]]  # by key: value and generation


def grown(place: Path, *, with_base: bool = False) -> tuple[mw.Table, Model]:
    """Generations that replace and delete rows of each other, and of the base table if the first is compacted."""
    table = mw.create_table(str(place), PLAIN, primary_key="id", writer_defaults={"fsync": False})
    rng, model = np.random.default_rng(5), Model()
    with table.writer(compaction=None) as writer:
        for number in range(SMALL_GENERATIONS):
            keys = np.unique(rng.integers(0, KEYS, 8)).tolist()
            writer.put(pa.Table.from_pylist([{"id": key, "v": 100 * number + key} for key in keys], schema=PLAIN))
            gone = rng.integers(0, KEYS, 2).tolist()
            writer.delete(gone)
            writer.flush()
            if with_base and number == 0:
                table.compact()
            model.update({key: (100 * number + key, number + 1) for key in keys})
            for key in gone:
                model.pop(key, None)
    return table, model


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[mw.Table, Model]:
    return grown(tmp_path_factory.mktemp("fresh") / "t")


def test_the_newest_row_of_each_key_shows_once(tmp_path: Path) -> None:
    table, model = grown(tmp_path / "t", with_base=True)
    batches = list(table.scan().to_batches())
    found = pa.Table.from_batches(batches)
    assert sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == sorted(
        (key, value) for key, (value, _) in model.items()
    )
    assert len(batches) <= 2, "a batch of the SSTables, one of the base table"


def test_a_filter_may_ask_for_a_column_that_is_not_shown(fresh: tuple[mw.Table, Model]) -> None:
    table, model = fresh
    found = table.scan(columns=["id"], filter="v >= 2000").to_table()
    assert found.schema.names == ["id"]
    assert sorted(found["id"].to_pylist()) == sorted(key for key, (value, _) in model.items() if value >= 2000)
    assert table.scan(columns=[], filter="v >= 2000").to_table().num_rows == found.num_rows
    assert table.scan(columns=["v"], limit=3).to_table().num_rows == 3


def test_every_row_shows_its_own_generation(fresh: tuple[mw.Table, Model]) -> None:
    table, model = fresh
    found = table.scan(with_generation=True).to_table()
    shown = dict(zip(found["id"].to_pylist(), found["_memtable_gen"].to_pylist(), strict=True))
    assert shown == {key: generation for key, (_, generation) in model.items()}


def test_dictionaries_that_arrow_cannot_join_are_read_one_by_one(tmp_path: Path) -> None:
    """Each generation has a few values; those of all together are more than an index of eight bits counts."""
    table = mw.create_table(str(tmp_path / "t"), WITH_KIND, primary_key="id", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        for number in range(3):
            ids = list(range(100 * number, 100 * number + 100))
            names = pa.array([f"kind {key}" for key in ids]).dictionary_encode().cast(WITH_KIND.field("kind").type)
            writer.put(pa.table([pa.array(ids), pa.array(ids), names], schema=WITH_KIND))
            writer.flush()
    found = [row for batch in table.scan().to_batches() for row in batch.to_pylist()]
    assert {row["id"]: row["kind"] for row in found} == {key: f"kind {key}" for key in range(300)}


# A large base table below fresh rows is counted, scanned, asked and compacted in memory that does not grow with it.
#
# The proof has 100M rows of two narrow columns and 1M fresh ones, and its process at most 2 GB; see
# `docs/design/reading.md` for the figures.

BASE = scaled(ci=1_000_000, prove=100_000_000)
FRESH = BASE // 100
NEW = FRESH // 2  # of them; the others supersede rows of the base table
DEAD = 10
STEP = 1_000_000
LARGE_LIMIT_MB = scaled(ci=480, prove=2048)
SECONDS = scaled(ci=100, prove=1500)
NUMBERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float32())])
STEPS_READER = """
import json, sys, time
import lance_memwal as mw
uri, base, fresh, new = sys.argv[1], *map(int, sys.argv[2:])
table, told = mw.open_table(uri), {}

def peak_mb():  # of this program: what the system counts for a process begins with its parent
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) >> 10

def step(name, work):
    began = time.monotonic()
    found = work()
    told[name] = [found, round(time.monotonic() - began, 2), peak_mb()]

def scanned():
    rows = total = 0
    for batch in table.scan(columns=["id"]).to_reader():
        rows, total = rows + batch.num_rows, total + int(batch.column(0).to_numpy().sum())
    return [rows, total]

step("count", table.count_rows)
step("scan", scanned)
step("get", lambda: [table.get(key) for key in (base - 1, base + new - 1, 3, 0, base + new)])
step("compact", lambda: table.compact().rows_written)
step("count after it", table.count_rows)
print(json.dumps(told))
"""


def batches(first: int, end: int) -> Iterator[pa.RecordBatch]:
    for start in range(first, end, STEP):
        ids = np.arange(start, min(start + STEP, end))
        yield pa.record_batch([pa.array(ids), pa.array(np.zeros(len(ids), np.float32))], schema=NUMBERS)


def sum_below(end: int) -> int:
    return end * (end - 1) // 2


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    """The base rows have the value 0, the fresh ones 1: half of them new keys, half keys of the base table."""
    place = tmp_path / "t"
    defaults = {"fsync": False}
    table = mw.create_table(str(place), NUMBERS, primary_key="id", sharding=mw.Unsharded(), writer_defaults=defaults)
    rows = pa.RecordBatchReader.from_batches(NUMBERS, batches(0, BASE)).cast(table.schema)
    lance.write_dataset(rows, table.uri, mode="append")
    kept = np.arange(0, BASE, BASE // (FRESH - NEW))
    fresh = np.random.default_rng(5).permutation(np.concatenate([np.arange(BASE, BASE + NEW), kept]))
    with mw.open_table(str(place)).writer(compaction=None) as writer:
        for part in np.array_split(fresh, 10):
            writer.put(pa.record_batch([pa.array(part), pa.array(np.ones(len(part), np.float32))], schema=NUMBERS))
            writer.flush()
        writer.delete(list(range(DEAD)))
    yield str(place)
    for path in sorted(place.rglob("*"), reverse=True):  # more than a gigabyte, of the proof
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.scaled
@pytest.mark.timeout(2 * SECONDS)
def test_reads_and_a_compaction_of_a_large_table_have_bounded_memory(uri: str) -> None:
    arguments = [sys.executable, "-c", STEPS_READER, uri, str(BASE), str(FRESH), str(NEW)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(told)
    live = BASE + NEW - DEAD
    assert told["count"][0] == told["count after it"][0] == live
    assert told["scan"][0] == [live, sum_below(BASE + NEW) - sum_below(DEAD)]
    wanted = [{"id": BASE - 1, "v": 0.0}, {"id": BASE + NEW - 1, "v": 1.0}, None, None, None]
    assert told["get"][0] == wanted
    assert told["compact"][0] == FRESH - 1, "0 is dead"
    assert max(peak_mb for _, _, peak_mb in told.values()) <= LARGE_LIMIT_MB, told
