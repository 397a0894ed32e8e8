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
    '{"a": "1", "é": "\\u00e9\\n", "big": 12345678901234567890123}',
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


@pytest.mark.parametrize("wrong", ["nope", '{"a": 1} x', '{"a":1,"a":2}', '{"a":'])
def test_what_lance_cannot_encode_is_refused_and_never_acknowledged(tmp_path: Path, wrong: str) -> None:
    table = make(tmp_path / "t")
    with table.shard_writer() as writer:
        for column in (pa.array([wrong]), pa.array([wrong], pa.json_())):
            with pytest.raises(mw.InvalidInputError, match="'j': a text is no JSON"):
                writer.put(pa.table({"k": [1], "j": column, "n": [1]}))
        writer.put([{"k": 2, "j": "1", "n": 1}])
    assert shown(mw.open_table(table.uri)) == {2: "1"}


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
        assert RowAdapter(schema).adapt(stored)[0].column("j").to_pylist() == ['{"a":1}']


def test_bytes_that_are_no_json_are_damage_not_a_value() -> None:
    schema = TableSchema.from_arrow(SCHEMA)
    arrays = [pa.array([1]), pa.array([b"x"], pa.large_binary()), pa.array([1]), pa.array([False])]
    with pytest.raises(mw.CorruptDataError, match="'j'"):
        RowAdapter(schema).adapt(pa.RecordBatch.from_arrays(arrays, schema=schema.wal), position=3)


_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
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
