"""Every class with read verbs gives the same answers to the same calls: `ReadableSuite` over each of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.read.readable import Readable, WholeTable
from tests.kit.tables import FAST

SHARD = "11111111-2222-4333-8444-555555555555"
KEY = {b"lance-schema:unenforced-primary-key": b"true"}
VERBS = ("scan", "get", "lookup", "search", "count_rows", "get_blob")


def schema_of(key: list[str]) -> pa.Schema:
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string(), nullable=False)]
    marked = [
        field.with_metadata(
            KEY | ({b"lance-schema:unenforced-primary-key:position": str(key.index(field.name) + 1).encode()})
        )
        if field.name in key
        else field
        for field in columns
    ]
    return pa.schema([*marked, ("s", pa.string()), ("v", pa.list_(pa.float32(), 2))])


def row(number: int, text: str) -> dict[str, Any]:
    return {"id": number, "part": f"p{number}", "s": text, "v": [float(number), 1.0]}


def write(put: Callable[[Any], Any], delete: Callable[[Any], Any], flush: Callable[[], Any], key: list[str]) -> None:
    """Rows 0 to 5 in SSTables, row 3 rewritten and row 4 deleted in memory."""
    put([row(number, f"old word{number}") for number in range(6)])
    flush()
    put([row(3, "new word3")])
    delete([{name: row(4, "")[name] for name in key}])


def open_reader(kind: str, path: Path, key: list[str], stack: ExitStack) -> Readable:
    uri, schema = str(path / "t"), schema_of(key)
    if kind == "shard alone":
        alone = stack.enter_context(mw.ShardWriter.open(uri, schema, shard_id=SHARD, **FAST))
        write(alone.put, alone.delete, lambda: (alone.force_seal_active(), alone.wait_for_flush_drain()), key)
        return alone
    table = mw.create_table(uri, schema, primary_key=key, sharding=mw.Unsharded(), writer_defaults=FAST)
    if kind == "shard writer":
        shard = stack.enter_context(table.shard_writer())
        write(shard.put, shard.delete, lambda: (shard.force_seal_active(), shard.wait_for_flush_drain()), key)
        return shard
    writer = stack.enter_context(table.writer(compaction=None))
    write(writer.put, writer.delete, writer.flush, key)
    if kind == "view":
        return table.at(table.snapshot())
    return writer if kind == "table writer" else table


@pytest.fixture(params=["table", "view", "table writer", "shard writer", "shard alone"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader(kind: str, tmp_path: Path) -> Iterator[Readable]:
    with ExitStack() as stack:
        yield open_reader(kind, tmp_path, ["id"], stack)


LIVE = {0: "old word0", 1: "old word1", 2: "old word2", 3: "new word3", 5: "old word5"}


def test_scan_gives_the_same_rows_everywhere(reader: Readable) -> None:
    rows = reader.scan(order_by=["id"]).to_table().to_pylist()
    assert {found["id"]: found["s"] for found in rows} == LIVE
    assert reader.scan(["id"], "s like 'old%'", 2, 1, order_by=["-id"]).to_table()["id"].to_pylist() == [2, 1]
    assert reader.scan(["id"], pc.field("id") > 2).count_rows() == 2
    assert sorted(reader.scan(["id"], mw.where("id in (?, ?)", 3, 4)).to_table()["id"].to_pylist()) == [3]
    generations = reader.scan(["id"], with_generation=True, order_by=["id"]).to_table()["_memtable_gen"].to_pylist()
    assert generations == [1, 1, 1, 2, 1]
    assert reader.scan(consistency="flushed").count_rows() == 6
    with pytest.raises(mw.InvalidInputError, match="consistency"):
        reader.scan(consistency="newest")  # type: ignore[arg-type]
    with pytest.raises(mw.InvalidInputError, match="nothing"):
        reader.scan(["nothing"])


def test_get_takes_the_same_forms_of_a_key_everywhere(reader: Readable) -> None:
    for form in (3, (3,), [3], {"id": 3}, pa.scalar(3)):
        assert (reader.get(form) or {}).get("s") == "new word3", form
    assert reader.get(0, ["s"]) == {"s": "old word0"}
    assert reader.get(4) is None
    assert reader.get(99) is None
    for wrong in (True, "3", 1.5, (1, 2), {"part": "p1"}, None):
        with pytest.raises(mw.InvalidInputError):
            reader.get(wrong)


def test_lookup_shows_deleted_keys_if_requested(reader: Readable) -> None:
    found = reader.lookup([3, 4, 5, 5, 99], ["id", "s"])
    assert sorted(found.to_pylist(), key=lambda r: r["id"]) == [{"id": n, "s": LIVE[n]} for n in (3, 5)]
    flagged = {r["id"]: r["_tombstone"] for r in reader.lookup([3, 4, 99], with_tombstones=True).to_pylist()}
    assert flagged == {3: False, 4: True}


def test_count_rows_takes_a_filter_and_a_consistency(reader: Readable) -> None:
    assert reader.count_rows() == 5
    assert reader.count_rows("id > 2") == 2
    assert reader.count_rows("id > 2", "flushed") == reader.count_rows("id > 2", consistency="flushed") == 3


def test_search_ranks_vectors_texts_and_both(reader: Readable) -> None:
    assert reader.search([4.2, 1.0], k=2)["id"].to_pylist() == [5, 3]
    assert reader.search(text="new", column="s")["id"].to_pylist() == [3]
    assert reader.search(text="new", text_column="s")["id"].to_pylist() == [3]
    both = reader.search([3.0, 1.0], text="new", vector_column="v", text_column="s", k=1)
    assert both["id"].to_pylist() == [3]
    with pytest.raises(mw.InvalidInputError, match="not both"):
        reader.search(text="new", column="s", text_column="s")


def test_get_blob_refuses_a_column_without_blobs(reader: Readable) -> None:
    with pytest.raises(mw.InvalidInputError, match="not a blob column"):
        reader.get_blob(1, "s")


def test_composite_keys_are_read_the_same_way_everywhere(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        reader = open_reader(kind, tmp_path, ["id", "part"], stack)
        for form in ((3, "p3"), [3, "p3"], {"id": 3, "part": "p3"}, {"part": "p3", "id": 3}):
            assert (reader.get(form) or {}).get("s") == "new word3", form
        assert reader.get((4, "p4")) is None
        assert reader.lookup([(1, "p1"), (4, "p4"), (1, "p2")])["s"].to_pylist() == ["old word1"]
        with pytest.raises(mw.InvalidInputError):
            reader.get(3)


def test_verbs_have_one_signature() -> None:
    for owner in (mw.Table, mw.TableView, mw.TableWriter, mw.ShardWriter):
        assert issubclass(owner, Readable)
        for verb in VERBS:
            assert inspect.signature(getattr(owner, verb)) == inspect.signature(getattr(Readable, verb)), (owner, verb)
    assert Readable.__abstractmethods__ == {"_capture"}
    assert issubclass(mw.Table, WholeTable)
    assert issubclass(mw.TableView, WholeTable)


@pytest.mark.parametrize("kind", ["table", "view"], indirect=True)
def test_a_whole_table_is_an_arrow_stream_and_an_iterable(reader: WholeTable) -> None:
    assert sorted(pa.table(reader)["id"].to_pylist()) == sorted(LIVE)
    assert sum(batch.num_rows for batch in reader) == len(reader) == reader.to_arrow().num_rows == 5
    assert reader.head(2).num_rows == 2
    assert bool(reader)


def test_a_shard_writer_refuses_other_shards(tmp_path: Path) -> None:
    with ExitStack() as stack:
        shard = open_reader("shard writer", tmp_path, ["id"], stack)
        assert isinstance(shard, mw.ShardWriter)
        assert shard.scan(shards=[shard.shard_id]).count_rows() == 5
        with pytest.raises(mw.InvalidInputError, match="its own shard"):
            shard.scan(shards=[SHARD])
