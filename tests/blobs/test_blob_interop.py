"""Tables with blobs are written in turn by pylance and by us, in both layouts. What pylance cannot do is named here."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.blob import Blob, blob_array, blob_field
from peer_child import blob_of

import lance_memwal as mw
from lance_memwal.log.tailer import WalTailer
from tests.kit.blobs import IMAGE

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
    table.checkpoint_create("then")
    with table.shard_writer(fsync=False) as writer:
        ours(writer, 10, "0")
        ours(writer, 11, "null")
    table.compact()
    table.maintain(versions=timedelta(0), grace_seconds=0)
    check(table, {**FIRST, 10: "0", 11: "null"})
    view = table.at("then")
    assert view.get_blob(10, "image").read() == blob_of(10, PACKED)
    assert view.get_blob(11, "image").read() == blob_of(11, DEDICATED)
    table.checkpoint_drop("then")
    assert table.gc(grace_seconds=0).count("orphan") or not list(Path(table.uri).glob("_mem_wal/*/*.blob"))
