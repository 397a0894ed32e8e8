"""Tables that LanceDB 0.40 made with its write spec: opened, written and read by us, and the reverse.

LanceDB embeds an older Lance, which cannot replay a log of ours: it opens our tables where no unflushed tail exists.
"""

from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import FAST, ids_of, outside, rows_of

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("v", pa.string())])
SPECS: dict[str, tuple[Any, mw.Unsharded | mw.Bucket | mw.Identity]] = {
    "unsharded": (lancedb.LsmWriteSpec.unsharded(), mw.Unsharded()),
    "bucket": (lancedb.LsmWriteSpec.bucket("id", 4), mw.Bucket("id", 4)),
    "identity": (lancedb.LsmWriteSpec.identity("id"), mw.Identity("id")),
}


def _rows(numbers: Any, v: str) -> list[dict[str, Any]]:
    return [{"id": i, "v": v} for i in numbers]


def _their_table(place: Path, spec: Any) -> Any:
    table: Any = lancedb.connect(str(place)).create_table(
        "t", data=pa.Table.from_pylist(_rows(range(4), "base"), schema=SCHEMA)
    )
    table.set_lsm_write_spec(spec)
    return table


def _upsert(table: Any, rows: list[dict[str, Any]], sharding: Any) -> None:
    """LanceDB writes one shard at a time, and takes rows of one shard only."""
    batch = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()[0]
    for _, part in mw.route(batch, sharding, SCHEMA):
        table.close_lsm_writers()
        builder = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(pa.Table.from_batches([part]))


def _their_rows(place: Path) -> list[dict[str, Any]]:
    table: Any = lancedb.connect(str(place)).open_table("t")
    return rows_of(table.search().limit(1_000).to_arrow().select(["id", "v"]))


def _uri(place: Path) -> str:
    return str(place / "t.lance")


@pytest.mark.parametrize("name", SPECS)
def test_a_table_of_lancedb_is_opened_read_and_written_by_us(tmp_path: Path, name: str) -> None:
    spec, sharding = SPECS[name]
    theirs = _their_table(tmp_path, spec)
    _upsert(theirs, _rows(range(2, 8), "lancedb"), sharding)
    table = mw.open_table(_uri(tmp_path))
    assert table.sharding == sharding
    assert table.primary_key == ["id"]
    expected = {row["id"]: row for row in _rows(range(2), "base") + _rows(range(2, 8), "lancedb")}
    assert rows_of(table.scan()) == [expected[i] for i in sorted(expected)]  # its last shard is open, rows in its log
    assert [table.get(i) for i in range(9)] == [expected.get(i) for i in range(9)]
    with outside() as other:
        assert rows_of(other.ask("scan", table.uri)) == [expected[i] for i in sorted(expected)]
    theirs.close_lsm_writers()
    with table.writer(compaction=None, **FAST) as writer:
        writer.put(_rows(range(6, 12), "memwal"))
        writer.delete([0, 3])
        expected |= {row["id"]: row for row in _rows(range(6, 12), "memwal")}
        del expected[0], expected[3]
        assert rows_of(table.scan()) == [expected[i] for i in sorted(expected)]
    assert _their_rows(tmp_path) == [expected[i] for i in sorted(expected)]
    shards = {shard.shard_id for shard in table.shards()}
    assert shards == {mw.shard_id_for(sharding, i, kind=pa.int64()) for i in [0, *range(2, 12)]}


@pytest.mark.parametrize("name", SPECS)
def test_lancedb_opens_reads_and_writes_a_table_of_ours(tmp_path: Path, name: str) -> None:
    spec, sharding = SPECS[name]
    table = mw.create_table(
        _uri(tmp_path),
        pa.Table.from_pylist(_rows(range(3), "base"), schema=SCHEMA),
        sharding=sharding,
        writer_defaults=FAST,
    )
    with table.writer(compaction=None) as writer:
        writer.put(_rows(range(2, 8), "memwal"))
        writer.flush()
        writer.put(_rows([5, 9], "again"))
        writer.delete([2])
    expected = {
        row["id"]: row for row in [*_rows(range(2), "base"), *_rows(range(3, 8), "memwal"), *_rows([5, 9], "again")]
    }
    assert _their_rows(tmp_path) == [expected[i] for i in sorted(expected)]
    theirs: Any = lancedb.connect(str(tmp_path)).open_table("t")
    stored = theirs.get_lsm_write_spec()
    assert (stored.spec_type, stored.column, stored.num_buckets) == (spec.spec_type, spec.column, spec.num_buckets)
    _upsert(theirs, _rows([1, 5, 20], "lancedb"), sharding)
    theirs.close_lsm_writers()
    expected |= {row["id"]: row for row in _rows([1, 5, 20], "lancedb")}
    everything = [expected[i] for i in sorted(expected)]
    assert rows_of(table.scan()) == everything
    assert table.get(5) == {"id": 5, "v": "lancedb"}
    with table.writer(compaction=None) as writer:
        writer.put(_rows([20], "memwal"))
        assert table.get(20) == {"id": 20, "v": "memwal"}
    table.compact()
    expected[20] = {"id": 20, "v": "memwal"}
    assert _their_rows(tmp_path) == rows_of(table.scan()) == [expected[i] for i in sorted(expected)]


def test_compacted_rows_of_ours_are_base_rows_to_lancedb(tmp_path: Path) -> None:
    table = mw.create_table(_uri(tmp_path), SCHEMA, sharding=mw.Bucket("id", 4), writer_defaults=FAST)
    with table.writer(compaction=None) as writer:
        writer.put(_rows(range(30), "memwal"))
    table.compact()
    table.gc(grace_seconds=0)
    theirs: Any = lancedb.connect(str(tmp_path)).open_table("t")
    assert theirs.count_rows() == 30
    assert ids_of(pa.Table.from_pylist(_their_rows(tmp_path))) == list(range(30))


def test_the_key_that_lancedb_marks_by_position_is_known(tmp_path: Path) -> None:
    plain = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    data = pa.Table.from_pylist([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}], schema=plain)
    theirs: Any = lancedb.connect(str(tmp_path)).create_table("t", data=data)
    theirs.set_unenforced_primary_key("id")
    theirs.set_lsm_write_spec(lancedb.LsmWriteSpec.bucket("id", 4))
    table = mw.open_table(_uri(tmp_path))
    assert table.primary_key == ["id"]
    with table.writer(**FAST) as writer:
        writer.put([{"id": 2, "v": "c"}])
    assert _their_rows(tmp_path) == [{"id": 1, "v": "a"}, {"id": 2, "v": "c"}]


def test_defaults_that_lancedb_stored_are_where_our_writers_start(tmp_path: Path) -> None:
    spec = lancedb.LsmWriteSpec.unsharded().with_writer_config_defaults({"max_memtable_rows": "33", "owner": "x"})
    _their_table(tmp_path, spec)
    table = mw.open_table(_uri(tmp_path))
    assert table.details().writer_config_defaults == {"max_memtable_rows": "33", "owner": "x"}
    with table.shard_writer(fsync=False) as writer:
        assert writer.config.max_memtable_rows == 33
