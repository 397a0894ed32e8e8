"""Dictionary columns: every acknowledged row is read and flushed, whatever its batches hold as dictionaries."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.writers import SHARD, base_table, flushed, key_field, open_writer

SMALL = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema([key_field(), pa.field("kind", SMALL)])


def batch(start: int, kinds: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, start + len(kinds))), kinds], schema=SCHEMA)


def words(start: int, count: int) -> pa.RecordBatch:
    """Rows with a word of their own each."""
    return batch(start, pa.array([f"word {k}" for k in range(start, start + count)], SMALL))


def found(root: Path) -> dict[int, str | None]:
    rows = mw.open_table(str(root)).scan().to_table()
    return dict(zip(rows.column("id").to_pylist(), rows.column("kind").to_pylist(), strict=True))


def test_a_null_among_the_values_of_a_dictionary_is_a_null(tmp_path: Path) -> None:
    """Arrow cannot join such dictionaries: the rows could be neither read nor flushed."""
    base_table(tmp_path, SCHEMA)
    writer = open_writer(tmp_path, None)
    writer.put(batch(0, pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array(["z", None]))))
    writer.put(batch(3, pa.array(["a"], SMALL)))
    expected = {0: None, 1: "z", 2: None, 3: "a"}
    assert found(tmp_path) == expected
    writer.close()
    assert found(tmp_path) == expected


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_memtable_ends_before_its_dictionary_has_more_values_than_its_indices_can_count(
    tmp_path: Path, ending: str
) -> None:
    base_table(tmp_path, SCHEMA)
    writer = open_writer(tmp_path, None)
    for start in range(0, 500, 100):
        writer.put(words(start, 100))
        writer.delete([start])
    expected = {k: f"word {k}" for k in range(500) if k % 100}
    assert found(tmp_path) == expected
    getattr(writer, ending)()
    assert found(tmp_path) == expected
    open_writer(tmp_path, None).close()
    assert found(tmp_path) == expected
    kinds = [{row["kind"] for row in rows} - {None} for rows in flushed(tmp_path, SHARD).values()]
    assert [len(each) for each in kinds] == [99] * 5


def test_values_that_come_again_do_not_end_a_memtable(tmp_path: Path) -> None:
    base_table(tmp_path, SCHEMA)
    with open_writer(tmp_path, None) as writer:
        for start in (0, 60, 0, 60, 20):
            writer.put(words(start, 60))
        assert writer.memtable_stats().batch_count == 5


def test_one_batch_may_have_as_many_values_as_its_indices_can_count(tmp_path: Path) -> None:
    base_table(tmp_path, SCHEMA)
    with open_writer(tmp_path, None) as writer:
        writer.put(words(0, 128))
        writer.put(words(128, 1))
        assert len(found(tmp_path)) == 129
    assert len(found(tmp_path)) == 129


def test_a_put_whose_batches_have_more_values_than_one_file_can_hold_is_refused(tmp_path: Path) -> None:
    base_table(tmp_path, SCHEMA)
    with open_writer(tmp_path, None) as writer:
        with pytest.raises(mw.InvalidInputError, match=r"column 'kind'.*split it"):
            writer.put([words(0, 100), words(100, 100)])
        writer.put([words(0, 100), words(0, 100), words(100, 27)])
    assert len(found(tmp_path)) == 127


def test_a_search_over_generations_finds_rows_whose_dictionaries_cannot_be_joined(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("v", pa.list_(pa.float32(), 2)))
    base_table(tmp_path, schema)
    with open_writer(tmp_path, None) as writer:
        for start in (0, 100, 200):
            vectors = pa.array([[k, 0] for k in range(start, start + 100)], schema.field("v").type)
            writer.put(pa.record_batch([*words(start, 100).columns, vectors], schema=schema))
        near = writer.scan().nearest("v", [250, 0], 3).to_table()
        assert near.column("kind").to_pylist() == ["word 250", "word 249", "word 251"]
        for _ in range(2):
            near = mw.open_table(str(tmp_path)).search(vector=[0, 0], k=250)
            assert near.column("kind").to_pylist() == [f"word {k}" for k in range(250)]
            writer.force_seal_active()
            writer.wait_for_flush_drain(100)


@pytest.mark.repro("writer-19")
@pytest.mark.parametrize(
    "kind",
    [pa.list_(SMALL), pa.large_list(SMALL), pa.struct([("a", pa.int8()), ("b", SMALL)])],
    ids=str,
)
def test_dictionaries_inside_columns_are_kept_readable_too(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([key_field(), pa.field("kind", kind)])
    base_table(tmp_path, schema)

    def rows(start: int, values: pa.Array) -> pa.RecordBatch:
        if pa.types.is_struct(kind):
            column = pa.StructArray.from_arrays([pa.nulls(len(values), pa.int8()), values], fields=list(kind))
        else:
            make = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
            column = make.from_arrays(list(range(len(values) + 1)), values, type=kind)
        return pa.record_batch([pa.array(range(start, start + len(values))), column], schema=schema)

    with open_writer(tmp_path, None) as writer:
        for start in (0, 100, 200):
            writer.put(rows(start, words(start, 100).column("kind")))
        writer.delete([0])
        writer.put(rows(1, pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), pa.array(["z", None]))))
        with pytest.raises(mw.InvalidInputError, match=r"column 'kind'.*split it"):
            writer.put([rows(0, words(0, 100).column("kind")), rows(0, words(100, 100).column("kind"))])
        assert len(found(tmp_path)) == 299
    read = found(tmp_path)
    assert len(read) == 299
    assert read[205] in (["word 205"], {"a": None, "b": "word 205"})
    assert read[1] in ([None], {"a": None, "b": None})


STRICT_TAG = pa.struct([pa.field("tag", SMALL, nullable=False)])
STRICT = pa.schema([key_field(), pa.field("kind", STRICT_TAG)])


def tagged(start: int, tags: list[str | None]) -> pa.RecordBatch:
    """Rows with a struct each; None is a null struct above a null tag."""
    words = pa.array(tags, SMALL)
    structs = pa.StructArray.from_arrays([words], fields=list(STRICT_TAG), mask=words.is_null())
    return pa.record_batch([pa.array(range(start, start + len(tags))), structs], schema=STRICT)


@pytest.mark.repro("writer-03", "writer-03b")
@pytest.mark.parametrize("ending", ["close", "abort"])
def test_null_structs_and_tombstones_over_strict_dictionaries_can_be_read_back(tmp_path: Path, ending: str) -> None:
    """The log of such a shard could not be read any more, by nobody, after one acknowledged delete."""
    base_table(tmp_path, STRICT)
    writer = open_writer(tmp_path, None)
    writer.put(tagged(0, ["red", None, "blue"]))
    writer.put([{"id": 3, "kind": None}, {"id": 4, "kind": {"tag": "green"}}])
    writer.delete([0, 99])
    expected = {1: None, 2: {"tag": "blue"}, 3: None, 4: {"tag": "green"}}
    assert found(tmp_path) == expected
    getattr(writer, ending)()
    assert found(tmp_path) == expected
    open_writer(tmp_path, None).close()
    assert found(tmp_path) == expected
    mw.open_table(str(tmp_path)).compact()
    assert found(tmp_path) == expected


def test_a_tombstone_of_an_appender_over_a_strict_dictionary_can_be_read_back(tmp_path: Path) -> None:
    base_table(tmp_path, STRICT)
    appender = mw.WalAppender.open(str(tmp_path), SHARD)
    appender.append(tagged(0, ["red", "blue"]))
    dead = pa.record_batch([pa.array([0]), pa.array([True])], names=["id", "_tombstone"])
    appender.append(dead)
    assert found(tmp_path) == {1: {"tag": "blue"}}


def test_rows_that_our_decoder_would_refuse_fail_their_put_and_nothing_else(tmp_path: Path) -> None:
    base_table(tmp_path, STRICT)
    with open_writer(tmp_path, None) as writer:
        broken = pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array(["red"]), safe=False)
        structs = pa.StructArray.from_arrays([broken], fields=list(STRICT_TAG))
        with pytest.raises(mw.InvalidInputError, match="column 'kind'"):
            writer.put(pa.record_batch([pa.array([7]), structs], schema=STRICT))
        writer.put(tagged(0, ["red"]))
    assert found(tmp_path) == {0: {"tag": "red"}}
