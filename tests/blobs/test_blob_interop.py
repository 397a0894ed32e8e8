"""Blobs that another implementation wrote: tables written in turn, entries, faults at range reads, and many large ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from lance.blob import Blob, blob_array, blob_field
from peer_child import blob_of

import lance_memwal as mw
from lance_memwal.errors import CorruptDataError
from lance_memwal.log.blob_targets import BlobTarget, with_blobs
from lance_memwal.log.entry import EntryEncoder, RowEncoder, decode_entry
from lance_memwal.log.tailer import WalTailer
from lance_memwal.memtable.blobs import MemBlobs
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript, SimulatedCrash
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import TOMBSTONE_FIELD, WalEntry
from tests.kit.blobs import IMAGE, blob_rows
from tests.kit.blobs import SCHEMA as BLOBS

HERE = Path(__file__).parent
ID = pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"})
SHARD = mw.shard_id_for(mw.Unsharded(), None)
LAYOUTS = {"first": (IMAGE, "2.1"), "second": (blob_field("image"), "2.2")}
FIRST = {1: "4", 2: "null", 3: "0"}
INLINE, PACKED, DEDICATED = "20", "150000", "5000000"


@pytest.fixture(params=list(LAYOUTS))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> mw.Table:
    """A table that pylance made and initialised."""
    field, version = LAYOUTS[request.param]
    uri, images = str(tmp_path / "t"), [blob_of(key, size) for key, size in FIRST.items()]
    column = blob_array(images) if request.param == "second" else pa.array(images, pa.large_binary())
    rows = pa.Table.from_arrays(
        [pa.array(list(FIRST)), column, pa.array(map(str, FIRST))], schema=pa.schema([ID, field, ("n", pa.string())])
    )
    lance.write_dataset(rows, uri, data_storage_version=version)  # type: ignore[arg-type]
    lance.dataset(uri).initialize_mem_wal(unsharded=True)
    return mw.open_table(uri)


def peer(what: str, table: mw.Table, *rows: str) -> Any:
    """What pylance does in a process that then dies."""
    command = [sys.executable, str(HERE / "peer_child.py"), what, table.uri, SHARD, *rows]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ours(writer: Any, key: int, size: str) -> None:
    writer.put([{"id": key, "image": blob_of(key, size), "n": str(key)}])


def check(table: mw.Table, sizes: dict[int, str]) -> None:
    """Exactly these rows are there, and every blob has its bytes."""
    rows = table.scan().to_table()
    shown = lance.dataset(table.uri).to_table(limit=1).schema.field("image").type
    assert rows.schema.field("image").type == shown
    found = {row["id"]: "null" if row["image"] is None else str(row["image"]["size"]) for row in rows.to_pylist()}
    assert found == sizes
    for key, size in sizes.items():
        file = table.get_blob(key, "image")
        assert (None if file is None else file.read()) == blob_of(key, size)


def test_blobs_that_pylance_wrote_are_read_replayed_flushed_and_compacted(table: mw.Table) -> None:
    peer("put", table, f"10={INLINE}", f"11={PACKED}", f"12={DEDICATED}", "13=null", "14=0", f"2={INLINE}", "3=null")
    peer("delete", table, "1")
    sizes = {2: INLINE, 3: "null", 10: INLINE, 11: PACKED, 12: DEDICATED, 13: "null", 14: "0"}
    check(table, sizes)  # its log
    assert table.verify().ok
    with table.shard_writer(fsync=False) as writer:  # replayed
        check(table, sizes)
        ours(writer, 15, PACKED)
        check(table, {**sizes, 15: PACKED})
    check(table, {**sizes, 15: PACKED})  # SSTables
    table.compact()
    check(table, {**sizes, 15: PACKED})
    table.gc(grace_seconds=0)
    check(table, {**sizes, 15: PACKED})
    assert table.verify().ok


def test_an_sstable_that_pylance_wrote_is_read_and_compacted(table: mw.Table) -> None:
    peer("close", table, f"10={INLINE}", f"11={PACKED}", f"12={DEDICATED}", "13=null")
    sizes = {**FIRST, 10: INLINE, 11: PACKED, 12: DEDICATED, 13: "null"}
    assert [shard.generations for shard in table.shards()]
    check(table, sizes)
    table.compact()
    check(table, sizes)


def test_writers_take_turns_and_nothing_is_lost(table: mw.Table) -> None:
    writer = table.shard_writer(fsync=False)
    for key, size in ((20, INLINE), (21, PACKED), (22, "null")):
        ours(writer, key, size)
    writer.delete([1])
    writer.abort()  # its rows are in the log alone
    sizes = {2: "null", 3: "0", 20: INLINE, 21: PACKED, 22: "null"}
    assert peer("ids", table) == sorted(sizes)  # pylance replays what we wrote
    peer("put", table, f"30={PACKED}", "21=0")
    sizes |= {30: PACKED, 21: "0"}
    check(table, sizes)
    writer = table.shard_writer(fsync=False)
    ours(writer, 31, INLINE)
    writer.abort()
    sizes |= {31: INLINE}
    check(table, sizes)
    assert peer("ids", table) == sorted(sizes)
    peer("close", table, f"32={DEDICATED}")  # pylance flushes all of it
    sizes |= {32: DEDICATED}
    check(table, sizes)
    table.compact()
    check(table, sizes)
    table.gc(grace_seconds=0)
    check(table, sizes)
    assert table.verify().ok


def test_appends_of_many_processes_begin_a_generation_of_their_own(table: mw.Table) -> None:
    peer("put", table, f"10={PACKED}")
    appender = mw.WalAppender.open(table.uri, SHARD)
    columns = lance.dataset(table.uri).schema
    second = isinstance(columns.field("image").type, pa.BaseExtensionType)
    images = blob_array([b"eleven"]) if second else pa.array([b"eleven"], pa.large_binary())
    appender.append([pa.RecordBatch.from_arrays([pa.array([11]), images, pa.array(["11"])], schema=columns)])
    assert table.get_blob(11, "image").read() == b"eleven"
    assert peer("ids", table) == [1, 2, 3, 10, 11]


def test_pylance_shows_no_fresh_blob(table: mw.Table) -> None:
    """Its scanner refuses the column in every tier above the base table; ours shows it (the other tests)."""
    writer = lance.dataset(table.uri).mem_wal_writer(SHARD)
    try:
        images = [b"fresh"]
        second = isinstance(table.schema.field("image").type, pa.BaseExtensionType)
        column = blob_array(images) if second else pa.array(images, pa.large_binary())
        schema = lance.dataset(table.uri).schema
        writer.put(pa.Table.from_arrays([pa.array([50]), column, pa.array(["50"])], schema=schema))
        with pytest.raises(OSError, match=r"[Cc]ast"):
            writer.lsm_scanner().to_table()
    finally:
        writer.close()


def test_a_reference_of_the_second_layout_is_read_and_not_written(tmp_path: Path) -> None:
    field, version = LAYOUTS["second"]
    table = mw.create_table(str(tmp_path / "t"), pa.schema([ID, field]))
    assert table.dataset.data_storage_version == version
    with table.writer(fsync=False) as writer, pytest.raises(mw.InvalidInputError, match=r"'image'.*reference"):
        writer.put([{"id": 1, "image": Blob.from_uri("file:///nowhere")}])


@pytest.mark.parametrize("table", ["second"], indirect=True)
def test_a_file_of_blobs_that_is_gone_is_named(table: mw.Table) -> None:
    peer("put", table, f"10={PACKED}")
    (beside,) = Path(table.uri).glob("_mem_wal/*/*_gen_1/data/*/*.blob")
    beside.unlink()
    with pytest.raises(mw.CorruptDataError, match="lacks the blob") as error:
        table.scan().to_table()
    assert error.value.path is not None
    assert error.value.path.endswith(".blob")
    with pytest.raises(mw.CorruptDataError):
        WalTailer(table.location, SHARD).read_entry(1)


def test_collection_keeps_the_blobs_of_a_log_that_nobody_has_flushed(table: mw.Table) -> None:
    peer("put", table, f"10={PACKED}", f"11={DEDICATED}")
    table.gc(grace_seconds=0)
    check(table, {**FIRST, 10: PACKED, 11: DEDICATED})


def test_a_checkpoint_keeps_the_blobs_beside_the_entries_that_it_reads(table: mw.Table) -> None:
    peer("put", table, f"10={PACKED}", f"11={DEDICATED}")
    table.checkpoints.create("then")
    with table.shard_writer(fsync=False) as writer:
        ours(writer, 10, "0")
        ours(writer, 11, "null")
    table.compact()
    table.maintain(versions=timedelta(0), grace_seconds=0)
    check(table, {**FIRST, 10: "0", 11: "null"})
    view = table.at("then")
    assert view.get_blob(10, "image").read() == blob_of(10, PACKED)
    assert view.get_blob(11, "image").read() == blob_of(11, DEDICATED)
    table.checkpoints.drop("then")
    assert table.gc(grace_seconds=0).count("orphan") or not list(Path(table.uri).glob("_mem_wal/*/*.blob"))


FOREIGN = "11111111-2222-4333-8444-555555555555"
SCHEMA = TableSchema.from_arrow(pa.schema([("id", pa.int64()), blob_field("image"), ("tag", pa.json_())]))
TARGET = BlobTarget.of("0a0b0c0d", FOREIGN, 3, 7, 8000)
MIB = 1 << 20


def encoded(images: list[Any]) -> bytes:
    columns = [pa.array(range(len(images))), blob_array(images), pa.array(['{"a":1}'] * len(images), pa.json_())]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.nullable)
    flagged = batch.append_column(TOMBSTONE_FIELD, pa.array([False] * len(images)))
    return EntryEncoder(SCHEMA.wal, 7, 3, TARGET.metadata()).encode([flagged])


def loaded(place: Path, data: bytes) -> WalEntry:
    return with_blobs(resolve(str(place)), FOREIGN, decode_entry(data))


def foreign(image: dict[str, Any], kind: pa.DataType | None = None, **target: str) -> bytes:
    """An entry as another implementation writes it; `kind` is how it holds a blob."""
    named = {key.encode(): value for key, value in target.items()}
    columns = SCHEMA.wal if kind is None else SCHEMA.wal.set(1, SCHEMA.wal.field(1).with_type(kind))
    schema = columns.with_metadata({b"writer_epoch": "7", b"generation": "3", **TARGET.metadata(), **named})
    arrays = [pa.array([1]), pa.array([image], schema.types[1]), pa.nulls(1, schema.types[2]), pa.array([False])]
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def test_an_entry_of_ours_comes_back_whole(tmp_path: Path) -> None:
    entry = loaded(tmp_path, encoded([b"abc", None, b""]))
    (batch,) = entry.batches
    rows, flags = RowAdapter(SCHEMA).adapt(batch, None)
    assert (rows.schema.types, flags) == (SCHEMA.nullable.types, None)
    assert [value and value["data"] for value in rows.column("image").to_pylist()] == [b"abc", None, b""]
    assert rows.column("tag").to_pylist() == ['{"a":1}'] * 3
    assert entry.footer is not None


def test_the_bytes_of_an_entry_are_not_copied(tmp_path: Path) -> None:
    data = encoded([b"a" * MIB, b"b" * MIB])
    (batch,) = loaded(tmp_path, data).batches
    values = batch.column("image").storage.field(0).buffers()[2]
    start = pa.py_buffer(data).address
    assert start < values.address < start + len(data)


def test_all_our_writers_name_the_same_target_and_others_another() -> None:
    assert BlobTarget.of("0a0b0c0d", FOREIGN, 3, 9, 100).directory == TARGET.directory
    assert TARGET.directory.endswith("_gen_3")
    assert len(TARGET.data_file) == 24 + 26 + len(".lance")
    others = [BlobTarget.of("0a0b0c0e", FOREIGN, 3, 7, 8000), BlobTarget.of("0a0b0c0d", FOREIGN, 4, 7, 8000)]
    assert not {TARGET.data_file} & {other.data_file for other in others}


ELSEWHERE = {"kind": 1, "data": None, "uri": None, "blob_id": 1, "blob_size": 3, "position": 4}


def test_a_kind_that_we_do_not_know_is_not_understood(tmp_path: Path) -> None:
    with pytest.raises(mw.UnsupportedFormatError, match="kind 9"):
        loaded(tmp_path, foreign({**ELSEWHERE, "kind": 9}))


@pytest.mark.parametrize(
    ("fields", "image"),
    [
        ([], {}),
        ([("kind", pa.uint8())], {"kind": 0}),
        ([("kind", pa.uint8()), ("data", pa.list_(pa.int8()))], {"kind": 0, "data": [1]}),
        ([("kind", pa.string()), ("data", pa.large_binary())], {"kind": "x", "data": b""}),
        ([("kind", pa.uint8()), ("data", pa.large_binary())], {"kind": 1, "data": b""}),
        ([("kind", pa.uint8()), ("data", pa.large_binary())], {"kind": 3, "data": b""}),
    ],
)
def test_a_form_of_blobs_that_we_do_not_know_is_not_understood(
    tmp_path: Path, fields: list[tuple[str, pa.DataType]], image: dict[str, Any]
) -> None:
    data = foreign(image, pa.struct(fields))
    with pytest.raises(mw.UnsupportedFormatError, match="form") as refused:
        with_blobs(resolve(str(tmp_path)), FOREIGN, decode_entry(data, 5))
    assert refused.value.position == 5


def test_a_blob_beside_the_data_file_is_read_by_its_range(tmp_path: Path) -> None:
    path = tmp_path / paths.blob_path(FOREIGN, TARGET.directory, TARGET.data_file, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0123456789")
    assert path.name == "1" + "0" * 31 + ".blob"
    (batch,) = loaded(tmp_path, foreign(ELSEWHERE)).batches
    assert batch.column("image").to_pylist()[0]["data"] == b"456"
    with pytest.raises(mw.CorruptDataError, match="lacks the blob"):
        loaded(tmp_path, foreign({**ELSEWHERE, "blob_size": 7}))


@pytest.mark.parametrize(
    "target", [{"mem_wal_target_generation_dir": "../../etc"}, {"mem_wal_target_data_file": "../../../passwd"}]
)
def test_an_entry_whose_target_leads_elsewhere_is_refused(tmp_path: Path, target: dict[str, str]) -> None:
    with pytest.raises(mw.CorruptDataError, match="malformed"):
        loaded(tmp_path, foreign(ELSEWHERE, None, **target))


@pytest.mark.parametrize("cut", [1, 8, 40, 200])
def test_a_cut_entry_is_damaged(cut: int) -> None:
    with pytest.raises(mw.CorruptDataError):
        decode_entry(encoded([b"abc"])[:-cut])


SIZES = {1: "4", 10: "20", 11: "150000", 12: "200000"}
# A wrong bit is left out: those files have no checksum, and neither has the entry for them.
KINDS = [kind for kind in FaultKind if kind.applies_to("get_range") and kind is not FaultKind.BIT_FLIP]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in whose log pylance left blobs, small ones and large ones."""
    place = tmp_path_factory.mktemp("peer") / "t"
    schema = pa.schema([ID, blob_field("image"), ("n", pa.string())])
    rows = pa.Table.from_arrays([pa.array([1]), blob_array([blob_of(1, SIZES[1])]), pa.array(["1"])], schema=schema)
    lance.write_dataset(rows, str(place), data_storage_version="2.2").initialize_mem_wal(unsharded=True)
    child = Path(__file__).parent / "peer_child.py"
    puts = [f"{key}={size}" for key, size in SIZES.items() if key >= 10]
    done = subprocess.run(
        [sys.executable, str(child), "put", str(place), SHARD, *puts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    return place


@dataclass(frozen=True, slots=True)
class OneRange(FaultPlan):
    """The range read of this number meets a fault, whatever else is called meanwhile."""

    number: int = 0
    kind: FaultKind = FaultKind.SHORT_READ
    seen: Iterator[int] = field(default_factory=count)

    def fault(self, index: int, call: str) -> FaultKind | None:
        return self.kind if call == "get_range" and next(self.seen) == self.number else None


def live(place: Path, script: FaultScript) -> None:
    """One process: look at the log, take it over, write, flush, compact."""
    CACHE.clear()
    table = mw.open_table(resolve(str(place), clock=SkippingClock(), wrap=script.wrap))
    assert table.count_rows() >= len(SIZES)
    with table.shard_writer(fsync=False) as writer:
        writer.put([{"id": 13, "image": b"ours", "n": "13"}])
    table.compact()


def check_sizes(place: Path) -> None:
    CACHE.clear()
    table = mw.open_table(str(place))
    assert set(SIZES) <= set(table.scan().to_table().column("id").to_pylist())
    for key, size in SIZES.items():
        file = table.get_blob(key, "image")
        assert file is not None
        assert file.read() == blob_of(key, size)
    assert table.verify().ok


@pytest.fixture(scope="module")
def range_reads(written: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many a life makes that meets no fault."""
    script, place = FaultScript(), tmp_path_factory.mktemp("recorded") / "t"
    shutil.copytree(written, place)
    live(place, script)
    check_sizes(place)
    return [call.kind for call in script.calls].count("get_range")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.value))
def test_range_read_fault_loses_no_blob(written: Path, range_reads: int, tmp_path: Path, kind: FaultKind) -> None:
    assert range_reads >= 4, "both large blobs, when the log is looked at and when it is taken over"
    for number in range(range_reads):
        place = tmp_path / f"at{number}"
        shutil.copytree(written, place)
        script = FaultScript(OneRange(number=number, kind=kind))
        try:
            live(place, script)
        except SimulatedCrash:
            assert kind in (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)
        except CorruptDataError:
            assert kind is FaultKind.SHORT_READ
        assert len(script.injected) == 1
        check_sizes(place)


def child(stage: str, uri: str, memtable_mib: int, kinds: list[str]) -> subprocess.Popen[str]:
    paths = [str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, str(HERE / "blob_child.py"), stage, uri, str(memtable_mib), *kinds]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )


def run(stages: list[str], uri: str, memtable_mib: int, kinds: list[str]) -> list[dict[str, Any]]:
    """What every stage told, all of them in one process."""
    with child(",".join(stages), uri, memtable_mib, kinds) as process:
        assert process.stdout is not None
        told = [json.loads(line) for line in process.stdout if line.startswith("{")]
    assert process.returncode == 0
    return told


def acked_before_a_kill(uri: str, memtable_mib: int, kinds: list[str], count: int) -> int:
    """The puts that a writer acknowledged before it was killed, after at least `count`."""
    acked = 0
    with child("write", uri, memtable_mib, kinds) as process:
        assert process.stdout is not None
        for line in process.stdout:
            acked += line.startswith("acked")
            if acked == count:
                process.kill()
    assert process.returncode == -9
    return acked


def stages(place: Path, memtable_mib: int, kinds: list[str], limit_mib: int, *, apart: bool) -> dict[str, float]:
    """What each stage took, in MiB; none may take more than `limit_mib`. `apart`: every stage has a process of its own."""
    uri, total = str(place / "t"), sum(int(kind.split(":")[0]) for kind in kinds)
    mw.create_table(uri, BLOBS)
    acked = acked_before_a_kill(uri, memtable_mib, kinds, total // 2)
    # "write" puts everything once more, above what the killed writer left
    stages = ["scan", "replay", "write", "scan", "read", "compact", "read"]
    told = [run([s], uri, memtable_mib, kinds)[0] for s in stages] if apart else run(stages, uri, memtable_mib, kinds)
    killed, _, _, scanned, of_sstables, compacted, of_base = told
    assert acked <= killed["found"] <= acked + 1
    assert [scanned["found"], of_sstables["found"], of_base["found"]] == [total] * 3
    assert compacted["rows"] >= total  # in several commits, where they are many
    assert mw.open_table(uri).verify().ok
    peaks = {f"{number} {answer['stage']}": answer["peak_mib"] for number, answer in enumerate(told)}
    assert max(peaks.values()) <= limit_mib, peaks
    return peaks


def test_blobs_survive_a_kill_and_memory_stays_flat(tmp_path: Path) -> None:
    stages(tmp_path, 8, ["50:1", "104:1048576", f"2:{8 * MIB}"], limit_mib=96, apart=False)  # of 120 MiB


@pytest.mark.prove
def test_a_thousand_small_and_a_few_huge_blobs_survive_a_kill_and_memory_stays_flat(tmp_path: Path) -> None:
    peaks = stages(tmp_path, 64, ["1000:1", "200:1048576", f"4:{64 * MIB}"], limit_mib=420, apart=True)  # of 456 MiB
    print(peaks)


def test_a_memtable_holds_the_bytes_that_it_was_given(tmp_path: Path) -> None:
    """No copy: what is written out, and what is read by key, lies in the buffers of the put."""
    schema = TableSchema.from_arrow(BLOBS)
    given = blob_rows({1: b"a" * MIB, 2: b"b" * MIB, 3: None}).combine_chunks().to_batches()[0]
    memtable = MemTable(schema, 1, 0, 0)
    memtable.append(given, None)
    memtable.append(blob_rows({4: b"c"}).combine_chunks().to_batches()[0], None)
    rows = memtable.capture()
    assert rows.table().nbytes < 1000  # what readers get holds no bytes of a blob
    start = given.column("image").buffers()[2].address
    stored = list(rows.stored())
    assert [batch.num_rows for batch in stored] == [4]  # small ones are joined
    assert memtable.blob(1, "image").address == start + MIB
    alone = MemTable(schema, 1, 0, 0)
    alone.append(given, None)
    (only,) = alone.capture().stored()
    assert only.column("image").buffers()[2].address == start


def test_a_memtable_that_can_read_blobs_again_holds_nothing_of_their_entry() -> None:
    schema = TableSchema.from_arrow(BLOBS)
    batch = blob_rows({1: b"a" * MIB, 2: None}).combine_chunks().to_batches()[0]
    flagged = batch.append_column(TOMBSTONE_FIELD, pa.array([False, True]))
    data = EntryEncoder(schema.wal, 1, 1).encode([flagged])
    nobody_else = sys.getrefcount(data)
    memtable = MemTable(schema, 1, 0, 0)
    memtable.append(*RowAdapter(schema).adapt(*decode_entry(data, 1).batches, None), again=lambda: batch)
    assert sys.getrefcount(data) == nobody_else
    assert memtable.size_bytes < 10_000
    held = memtable.capture().table()
    assert held.column("id").to_pylist() == [1, 2]
    assert held.column(TOMBSTONE_FIELD.name).to_pylist() == [False, True]
    assert memtable.blob(0, "image").to_pybytes() == b"a" * MIB


def test_parts_are_cut_by_bytes() -> None:
    schema = TableSchema.from_arrow(BLOBS)
    memtable = MemTable(schema, 1, 0, 0)
    sizes = [3 * MIB, 3 * MIB, 9 * MIB, 1, 1, 8 * MIB, 20 * MIB]
    rows = blob_rows({i: b"x" * size for i, size in enumerate(sizes)})
    memtable.append(rows.combine_chunks().to_batches()[0], None)
    parts = [batch.column("id").to_pylist() for batch in memtable.capture().stored()]
    assert parts == [[0, 1], [2], [3, 4], [5], [6]]


def test_an_entry_with_blobs_has_the_bytes_that_it_always_had() -> None:
    """It is encoded in another way than others, into the same bytes."""
    schema = TableSchema.from_arrow(BLOBS)
    plain = TableSchema.from_arrow(pa.schema([field.remove_metadata() for field in BLOBS]))
    batch = blob_rows({1: b"abc", 2: None}).combine_chunks().to_batches()[0]
    flagged = batch.append_column(TOMBSTONE_FIELD, pa.array([False, False]))
    ours = EntryEncoder(schema.wal, 3, 4).encode([flagged, flagged])
    others = EntryEncoder(plain.wal, 3, 4).encode([flagged, flagged])
    rows = EntryEncoder(schema.wal, 3, 4)
    assert ours == rows.assemble(RowEncoder(schema.wal).messages([flagged, flagged]))
    assert len(ours) != len(others)  # the schema's metadata


def test_a_batch_that_was_interrupted_on_its_way_leaves_no_blob(tmp_path: Path) -> None:
    blobs = MemBlobs(TableSchema.from_arrow(BLOBS))
    first, second = (blob_rows({1: data}).combine_chunks().to_batches()[0] for data in (b"interrupted", b"came"))
    blobs.take_in(0, first, None)  # and never in the memtable
    blobs.take_in(0, second, None)
    assert blobs.of(0, "image").to_pylist() == [b"came"]
