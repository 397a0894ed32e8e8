"""JSON columns: one spelling in every tier, Lance's functions in filters over all of them, and a log that others read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_memwal as mw
from lance_memwal.log.entry import EntryEncoder, decode_entry
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.json_values import decoded, encoded, spelled
from lance_memwal.rows.schema import TableSchema

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("j", pa.json_()), ("n", pa.int64())])
TEXTS = [
    '{"b": {"c": "x"}, "a": 1, "d": [1, 2, "z"]}',
    '{"a": 2.50, "b": {"c": "y"}}',
    "[1,   2]",
    '"a text"',
    "null",
    None,
    '{"a": "1", "é": "\\u00e9\\n", "big": 12345678901234567890}',
    "1e5",
    '{"a": true, "d": []}',
]
FILTERS = [
    "json_get_int(j, 'a') = 1",
    "json_get_float(j, 'a') > 2",
    "json_get_string(json_get(j, 'b'), 'c') = 'x'",
    "json_get(j, 'a') is not null",
    "json_extract(j, '$.b.c') = '\"y\"'",
    "json_exists(j, '$.b')",
    "json_array_contains(j, '$.d', 'z')",
    "json_array_length(j, '$.d') = 3",
    "json_get_int(j, 0) = 1",
    "j is null",
    "json_exists(j, '$.a') and n > 3",
    "not json_exists(j, '$.a')",
]


def make(uri: Path) -> mw.Table:
    return mw.create_table(str(uri), SCHEMA, primary_key="k", writer_defaults={"fsync": False})


def rows(start: int = 0) -> list[dict[str, Any]]:
    return [{"k": start + i, "j": text, "n": i} for i, text in enumerate(TEXTS)]


def shown(table: mw.Table) -> dict[int, str | None]:
    found = table.scan().to_table()
    return dict(zip(found.column("k").to_pylist(), found.column("j").to_pylist(), strict=True))


def in_lance(texts: list[str | None]) -> list[str | None]:
    return lance.write_dataset(pa.table({"j": pa.array(texts, pa.json_())}), "memory://").to_table()["j"].to_pylist()


def test_every_tier_shows_the_same_spelling(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    table, expected = make(uri), dict(enumerate(in_lance(TEXTS)))
    with table.shard_writer() as writer:
        writer.put(rows())
        assert shown(table) == expected, "memtable"
        assert writer.get(0)["j"] == expected[0]
        writer.abort()
    for tier in ("log", "replay", "SSTable", "base"):
        if tier == "replay":
            writer = table.shard_writer()
        if tier == "SSTable":
            writer.close()
        if tier == "base":
            table.compact()
        again = mw.open_table(str(uri))
        assert shown(again) == expected, tier
        assert again.get(6)["j"] == expected[6], tier
        assert again.lookup(list(expected), ["k", "j"]).num_rows == len(expected), tier
    assert json.loads(expected[0] or "") == json.loads(TEXTS[0] or "")
    with table.shard_writer() as writer:
        writer.delete([0])
        writer.put([{"k": 1, "j": None, "n": 0}])
        assert shown(table) == {**{k: v for k, v in expected.items() if k}, 1: None}


NOT_JSON = ["nope", '{"a": 1} x', '{"a":', "[1,]", "{a: 1}", "0x10", "01", ".5", "'a'", "True", "", '"a\nb"', "[NaN]"]
CHANGED_BY_LANCE = [
    *('{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "1e309", '{"a": -1e400}', "1e-400", "1e" + "9" * 30, "1" * 400),
    *("1" * 5_000, "-9223372036854775809", "0.1234567890123456789", '"\\ud800"', '["\\ude00\\ud83d"]'),
]
TOO_DEEP = [
    *("[" * 201 + "]" * 201, "[" * 1_500 + "]" * 1_500, "[" * 10_000 + "]" * 10_000, "[" * 20_000),
    *('{"a":' * 10_000 + "1" + "}" * 10_000, "['\"', " + "[" * 10_000 + "]" * 10_000 + ", '\"']"),
]
HARD_TO_WRITE = [
    *("18446744073709551615", "1e308", "5e-324", "0.10000000000000001", "-0.0", "100000000000000000000", "1.50E+3"),
    *('"\\u0000\\ud83d\\ude00"', ' {"b" : "x \\" [ ", "a":[ ]}\n', "[" * 200 + "]" * 200),
    *('"' + "[" * 5_000 + '"', "[" + "[]," * 5_000 + "{}]"),
]


@pytest.mark.parametrize("wrong", [*NOT_JSON, *CHANGED_BY_LANCE, *TOO_DEEP], ids=lambda text: text[:20])
def test_json_that_lance_would_change_is_refused(tmp_path: Path, wrong: str) -> None:
    table = make(tmp_path / "t")
    with table.shard_writer() as writer:
        for column in (pa.array([wrong]), pa.array([wrong], pa.json_())):
            with pytest.raises(mw.InvalidInputError, match="'j': cannot store the JSON"):
                writer.put(pa.table({"k": [1], "j": column, "n": [1]}))
        writer.put([{"k": 2, "j": "1", "n": 1}])
    assert shown(mw.open_table(table.uri)) == {2: "1"}


@pytest.mark.parametrize("wrong", ["[1,]", "1e400", "[" * 10_000 + "]" * 10_000], ids=lambda text: text[:20])
def test_every_kind_of_write_refuses_json_that_lance_would_change(tmp_path: Path, wrong: str) -> None:
    column = pa.array([None, wrong], pa.json_())
    with pytest.raises(mw.InvalidInputError, match="'j': cannot store the JSON"):
        mw.create_table(str(tmp_path / "data"), pa.table({"k": [1, 2], "j": column}), primary_key="k")
    table = make(tmp_path / "t")
    many = pa.table({"k": range(100_000), "j": pa.array(["1"] * 99_999 + [wrong], pa.json_())})
    with table.writer(max_memtable_rows=1_000, compaction=None) as writer:
        writer.put([{"k": 1, "j": "1", "n": 1}])
        for refused in (
            lambda: writer.put(many, missing="null"),
            lambda: writer.update({"k": 1, "j": wrong}),
            lambda: writer.update(where="k = 1", set={"j": f"'{wrong}'"}),
            lambda: writer.put({"k": 1, "j": wrong}, missing="keep"),
        ):
            with pytest.raises(mw.InvalidInputError, match="'j': cannot store the JSON"):
                refused()
    assert shown(mw.open_table(table.uri)) == {1: "1"}


@pytest.mark.parametrize("text", HARD_TO_WRITE, ids=lambda text: text[:20])
def test_json_that_is_accepted_has_the_same_value(tmp_path: Path, text: str) -> None:
    table = make(tmp_path / "t")
    with table.shard_writer() as writer:
        writer.put([{"k": 1, "j": text, "n": 1}])
        assert json.loads(shown(table)[1] or "") == json.loads(text)
        writer.abort()
    assert json.loads(shown(mw.open_table(table.uri))[1] or "") == json.loads(text)


def test_nested_json_is_checked_as_json_columns_are(tmp_path: Path) -> None:
    inside = pa.json_()
    fields = {"s": pa.struct([("j", inside)]), "l": pa.list_(inside), "m": pa.map_(pa.string(), inside)}
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), *fields.items()])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="k", writer_defaults={"fsync": False})

    def nested(text: str) -> dict[str, pa.Array]:
        json_text = pa.array([text], inside)
        return {
            "s": pa.StructArray.from_arrays([json_text], fields=list(fields["s"])),
            "l": pa.ListArray.from_arrays([0, 1], json_text),
            "m": pa.MapArray.from_arrays([0, 1], pa.array(["a"]), json_text),
        }

    with table.writer(compaction=None) as writer:
        for wrong in ("[1,]", "1e400", "[" * 10_000 + "]" * 10_000):
            for name, array in nested(wrong).items():
                with pytest.raises(mw.InvalidInputError, match=f"'{name}': cannot store the JSON"):
                    writer.put(pa.table({"k": [1], name: array}), missing="null")
                with pytest.raises(mw.InvalidInputError, match=f"'{name}': cannot store the JSON"):
                    writer.put({"k": [1], name: array.to_pylist()}, missing="null")
        good = nested('{"b": 1, "a": 2}')
        writer.put(pa.table({"k": [1], **good}))
        writer.put({"k": [2], **{name: array.to_pylist() for name, array in good.items()}})
    row = mw.open_table(table.uri).get(1)
    assert row == {"k": 1, "s": {"j": '{"a":2,"b":1}'}, "l": ['{"a":2,"b":1}'], "m": [("a", '{"a":2,"b":1}')]}
    assert mw.open_table(table.uri).get(2) == {**row, "k": 2}


def hiding(text: str) -> dict[str, pa.Array]:
    """Arrays in whose buffers `text` is, although no value shows it."""
    texts, shown = pa.array([text, '{"b": 1, "a": 2}', "3"], pa.json_()), pa.array([True, False, False])
    fields, ends, kinds = [pa.field("j", pa.json_())], pa.array([0, 1, 3, 3], pa.int32()), pa.array(["a", "b", "c"])
    strict = [pa.field("j", pa.json_(), nullable=False)]
    structs = pa.StructArray.from_arrays([texts], fields=fields, mask=shown)
    return {
        "struct": structs,
        "strict struct": pa.StructArray.from_arrays([texts], fields=strict, mask=shown),
        "all null": pa.StructArray.from_arrays([texts], fields=fields, mask=pa.array([True] * 3)),
        "slice": pa.StructArray.from_arrays([texts], fields=fields).slice(1),
        "list": pa.ListArray.from_arrays(ends, texts, mask=shown),
        "list slice": pa.ListArray.from_arrays(ends, texts).slice(1),
        "large list": pa.LargeListArray.from_arrays(ends.cast(pa.int64()), texts, mask=shown),
        "map slice": pa.MapArray.from_arrays(ends, kinds, texts).slice(1),
        "list of structs": pa.ListArray.from_arrays(ends, structs),
        "struct of lists": pa.StructArray.from_arrays([pa.ListArray.from_arrays(ends, texts)], names=["l"], mask=shown),
    }


@pytest.mark.parametrize("name", hiding("1"))
def test_json_that_no_value_shows_is_neither_checked_nor_stored(tmp_path: Path, name: str) -> None:
    """Lance parses such texts, too. Deeply nested ones crash the process."""
    array = hiding("nope")[name]
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("c", array.type)])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="k", writer_defaults={"fsync": False})
    rows = pa.table({"k": range(len(array)), "c": array}, schema=schema)
    with table.writer(compaction=None) as writer:
        writer.put(rows)
        expected = json.loads(
            json.dumps(array.to_pylist()).replace('{\\"b\\": 1, \\"a\\": 2}', '{\\"a\\":2,\\"b\\":1}')
        )
        for step in (writer.flush, table.compact):
            step()
            found = table.scan(order_by=["k"]).to_table()["c"].to_pylist()
            assert json.loads(json.dumps(found)) == expected
    created = mw.create_table(str(tmp_path / "with data"), rows, primary_key="k")
    assert created.count_rows() == len(array)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", ["", "\\\n"])
def test_json_with_an_open_string_is_refused_in_linear_time(end: str) -> None:
    text = '"' + '\\"' * 100_000 + end + "[" * 300
    with pytest.raises(mw.InvalidInputError, match="cannot store the JSON"):
        spelled(pa.array([text], pa.json_()))


def test_deep_json_of_earlier_versions_is_still_read() -> None:
    deep = pa.array(["[" * 1_500 + "]" * 1_500], pa.json_())
    stored = lance.write_dataset(pa.table({"j": deep}), "memory://").to_table(columns={"j": "cast(j as binary)"})
    schema = TableSchema.from_arrow(SCHEMA)
    arrays = [pa.array([1]), stored["j"].combine_chunks().cast(pa.large_binary()), pa.array([1]), pa.array([False])]
    batch, _ = RowAdapter(schema).adapt(pa.RecordBatch.from_arrays(arrays, schema=schema.wal), None)
    assert batch.column("j").to_pylist() == deep.to_pylist()


@pytest.mark.parametrize("stage", ["memtable", "log", "SSTable", "base", "mixed"])
def test_lances_functions_find_the_same_rows_in_every_tier(tmp_path: Path, stage: str) -> None:
    table = make(tmp_path / "t")
    writer = table.shard_writer()
    if stage == "mixed":
        writer.put(rows())
        writer.force_seal_active()
        writer.wait_for_flush_drain()
        table.compact()
        writer.put([{**row, "n": row["n"] + 1} for row in rows()[::2]])
        writer.delete([3])
        writer.force_seal_active()
        writer.put(rows(100))
    else:
        writer.put(rows())
    if stage == "log":
        writer.abort()
    elif stage in ("SSTable", "base"):
        writer.close()
        if stage == "base":
            table.compact()
    read = table if stage in ("memtable", "mixed") else mw.open_table(table.uri)
    oracle = lance.write_dataset(read.scan().to_table(), "memory://")
    for asked in FILTERS:
        found = sorted(read.scan(["k"], asked).to_table()["k"].to_pylist())
        assert found == sorted(oracle.to_table(columns=["k"], filter=asked)["k"].to_pylist()), asked
        assert found, asked
    writer.abort()


def test_the_peer_opens_our_log_and_we_read_what_it_puts(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.shard_writer() as ours:
        ours.put(rows())
        shard_id = ours.shard_id
        ours.abort()
    dataset = lance.dataset(table.uri)
    stored = [dataset.schema.field("k"), pa.field("j", pa.large_binary()), dataset.schema.field("n")]
    with dataset.mem_wal_writer(shard_id) as peer:
        seen = peer.lsm_scanner([]).to_table()
        assert decoded(seen["j"].combine_chunks()).to_pylist() == in_lance([TEXTS[k] for k in seen["k"].to_pylist()])
        fresh = encoded(pa.array(['{"by": "peer"}'], pa.json_()))
        peer.put(pa.record_batch([pa.array([0]), fresh, pa.array([7])], schema=pa.schema(stored)))
        expected = {**dict(enumerate(in_lance(TEXTS))), 0: '{"by":"peer"}'}
        assert shown(mw.open_table(table.uri)) == expected, "the peer's log"
    assert shown(mw.open_table(table.uri)) == expected, "the peer's SSTable"
    table.compact()
    assert shown(mw.open_table(table.uri)) == expected


def test_json_beside_blobs_goes_through_every_tier(tmp_path: Path) -> None:
    blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("j", pa.json_()), blob])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="k", writer_defaults={"fsync": False})
    rows = {"k": [1, 2], "j": ['{"b": 1, "a": [ ]}', None], "image": [b"x" * 5000, None]}
    writer = table.shard_writer()
    writer.put(rows)
    for tier in ("memtable", "log", "SSTable", "base"):
        if tier == "log":
            writer.abort()
        if tier == "SSTable":
            table.shard_writer().close()
        if tier == "base":
            table.compact()
        read = table if tier == "memtable" else mw.open_table(table.uri)
        assert shown(read) == {1: '{"a":[],"b":1}', 2: None}, tier
        image = read.get_blob(1, "image")
        assert image is not None
        assert image.read() == b"x" * 5000, tier
        assert read.scan(["k"], "json_exists(j, '$.a')").to_table()["k"].to_pylist() == [1], tier


def test_logs_that_hold_texts_are_still_read() -> None:
    schema = TableSchema.from_arrow(SCHEMA)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array(['{"a":1}'], pa.json_()), pa.array([1]), pa.array([False])], schema=schema.memory
    )
    for fields in (schema.with_ids, schema.wal):
        (stored,) = decode_entry(EntryEncoder(fields, 1, 1).encode([batch])).batches
        assert RowAdapter(schema).adapt(stored, None)[0].column("j").to_pylist() == ['{"a":1}']


def test_bytes_that_are_no_json_are_damage_not_a_value() -> None:
    schema = TableSchema.from_arrow(SCHEMA)
    arrays = [pa.array([1]), pa.array([b"x"], pa.large_binary()), pa.array([1]), pa.array([False])]
    with pytest.raises(mw.CorruptDataError, match="'j'"):
        RowAdapter(schema).adapt(pa.RecordBatch.from_arrays(arrays, schema=schema.wal), None, position=3)


_DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.none() | _DOCUMENTS.map(json.dumps), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_spelling_does_not_change_again_and_survives_the_log(texts: list[str | None]) -> None:
    once = spelled(pa.array(texts, pa.json_()))
    assert spelled(once).equals(once)
    assert decoded(encoded(once)).equals(once)
    assert [None if t is None else t for t in once.to_pylist()] == in_lance(texts)
