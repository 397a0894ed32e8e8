"""`lookup(with_tombstones=True)`: deleted keys show themselves, in every tier above the base table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("meta", pa.struct([("a", pa.int64())])),
    ]
)


def rows(*ids: int) -> list[dict[str, object]]:
    return [{"id": i, "name": f"n{i}", "meta": {"a": i}} for i in ids]


def shown(found: pa.Table) -> dict[int, tuple[str | None, bool]]:
    assert found.schema.names[-1] == "_tombstone"
    return {row["id"]: (row["name"], row["_tombstone"]) for row in found.to_pylist()}


@pytest.mark.parametrize("stage", ["memtable", "log", "SSTable"])
def test_a_deleted_key_has_a_row_that_says_so(tmp_path: Path, stage: str) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    writer = table.shard_writer()
    writer.put(rows(1, 2, 3))
    writer.close()
    table.compact()
    writer = table.shard_writer()
    writer.delete([2, 9])
    writer.put(rows(4))
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
    assert read.lookup([77], with_tombstones=True).schema.names == [*SCHEMA.names, "_tombstone"]
    if stage == "memtable":
        assert shown(writer.lookup([2], with_tombstones=True)) == {2: (None, True)}
        writer.put(rows(2))
        assert shown(writer.lookup([2], with_tombstones=True)) == {2: ("n2", False)}
    writer.abort()
    if stage == "SSTable":
        table.compact()
        assert shown(mw.open_table(uri).lookup(asked, with_tombstones=True)) == live


def test_the_flag_is_one(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with pytest.raises(mw.InvalidInputError, match="with_tombstones"):
        table.lookup([1], with_tombstones="yes")  # type: ignore[arg-type]


def test_deletes_that_do_not_wait_are_seen_at_once_and_durable_when_waited_for(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(
        uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 3), writer_defaults={"fsync": False}
    )
    with table.writer() as writer:
        writer.put(rows(*range(12)))
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
    keyless = mw.create_table(str(tmp_path / "u"), SCHEMA, writer_defaults={"fsync": False})
    with keyless.writer() as writer, pytest.raises(mw.InvalidInputError, match="no primary key"):
        writer.delete_nowait([1])
