"""Keys of every type: the same rows in every tier and by every way in, with one meaning for every reader and writer."""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.primary_key import keyed_schema
from lance_memwal.rows.uuid_text import uuids_as_bytes
from tests.kit.key_values import OWN_KEYS, other_forms

IDS = [str(kind) for kind, _ in OWN_KEYS]


def make(uri: Path, kind: pa.DataType, **choices: Any) -> mw.Table:
    schema = pa.schema([pa.field("k", kind, nullable=False), ("v", pa.int64())])
    return mw.create_table(str(uri), schema, primary_key="k", writer_defaults={"fsync": False}, **choices)


def held(table: mw.Table) -> dict[Any, int]:
    found = table.scan().to_table()
    rows = dict(zip(found.column("k").to_pylist(), found.column("v").to_pylist(), strict=True))
    assert len(rows) == found.num_rows
    return rows


def check(uri: Path, kind: pa.DataType, values: list[Any], expected: dict[Any, int]) -> None:
    """What a reader finds that shares nothing with the writer: scan, get, lookup."""
    table = mw.open_table(str(uri))
    assert held(table) == expected
    for value in values:
        row = table.get(value)
        assert (None if row is None else row["v"]) == expected.get(value)
        for form in other_forms(kind, value):
            again = table.get(form)
            assert (None if again is None else again["v"]) == expected.get(value), form
    assert sorted(table.lookup(values).column("v").to_pylist()) == sorted(expected.values())
    assert sorted(table.lookup(pa.array(uuids_as_bytes(values), kind), ["v"]).column("v").to_pylist()) == sorted(
        expected.values()
    )


@pytest.mark.parametrize(("kind", "values"), OWN_KEYS, ids=IDS)
def test_rows_are_the_same_in_every_tier(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    uri, expected = tmp_path / "t", {}
    table = make(uri, kind)
    if not pa.types.is_date32(kind):  # others are found by an index; without one they are compared
        lance.dataset(str(uri)).create_scalar_index("k", "BTREE")
    for generation in range(3):
        with table.shard_writer() as writer:
            given = values[generation % 2 :]
            writer.put([{"k": value, "v": 10 * generation + i} for i, value in enumerate(given)])
            expected |= {value: 10 * generation + i for i, value in enumerate(given)}
            gone = values[generation]
            writer.delete([gone])
            del expected[gone]
            assert writer.get(gone) is None
            for value in expected:
                assert writer.get(value) == {"k": value, "v": expected[value]}
            assert held(table) == expected, "memtable"
            if generation == 2:
                writer.abort()
        check(uri, kind, values, expected)  # an SSTable; of the last generation the log
        if generation == 1:
            table.compact()
            check(uri, kind, values, expected)
            assert lance.dataset(str(uri)).count_rows() == len(expected)
    table.shard_writer().close()
    check(uri, kind, values, expected)
    table.compact()
    check(uri, kind, values, expected)
    assert table.verify().ok
    plain = lance.dataset(str(uri)).to_table()
    assert dict(zip(plain.column("k").to_pylist(), plain.column("v").to_pylist(), strict=True)) == expected


def test_they_are_found_as_parts_of_one_long_key(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    names = [f"k{i}" for i in range(len(OWN_KEYS))]
    kinds = dict(zip(names, (kind for kind, _ in OWN_KEYS), strict=True))
    schema = pa.schema([*kinds.items(), ("name", pa.string()), ("v", pa.int64())])
    table = mw.create_table(uri, schema, primary_key=[*names, "name"], writer_defaults={"fsync": False})
    values = list(zip(*(values for _, values in OWN_KEYS), strict=True))
    expected = {(*part, name): i for i, part in enumerate(values) for name in ("x", "y\0")}
    gone, kept = (*values[0], "x"), (*values[2], "y\0")
    for sign in (1, -1):
        with table.shard_writer() as writer:
            writer.put(
                [{**dict(zip([*names, "name"], key, strict=True)), "v": sign * v} for key, v in expected.items()]
            )
            writer.delete([gone])
            assert writer.get(kept)["v"] == sign * 2
            assert writer.get(gone) is None
        again = mw.open_table(uri)
        scalars = tuple(
            pa.array(uuids_as_bytes([v]), kind)[0] for v, kind in zip(kept, [*kinds.values(), pa.string()], strict=True)
        )
        assert again.get(scalars)["v"] == sign * 2
        assert again.lookup(list(expected)).num_rows == len(expected) - 1
        if sign == 1:
            table.compact()
    table.compact()
    assert mw.open_table(uri).count_rows() == len(expected) - 1
    assert mw.open_table(uri).get(dict(zip([*names, "name"], (*values[3], "x"), strict=True)))["v"] == -3
    assert table.verify().ok


@pytest.mark.parametrize(("kind", "values"), OWN_KEYS[::2], ids=IDS[::2])
def test_key_filters_are_equal_with_and_without_index(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    table = make(tmp_path / "t", kind)
    with table.shard_writer() as writer:
        writer.put([{"k": value, "v": i} for i, value in enumerate(values[:2])])
    table.compact()
    lance.dataset(table.uri).create_scalar_index("k", "BTREE")
    with table.shard_writer() as writer:
        writer.put([{"k": value, "v": i + 2} for i, value in enumerate(values[2:])])
        for asked in _filters(kind):
            with_index = table.scan(filter=asked).to_table().column("v").to_pylist()
            oracle = lance.write_dataset(table.scan().to_table(), "memory://").to_table(filter=asked)
            assert sorted(with_index) == sorted(oracle.column("v").to_pylist()), asked
            assert with_index, asked


def _filters(kind: pa.DataType) -> list[str]:
    if pa.types.is_date(kind):
        return ["k >= date '1970-01-01'", "k = date '1969-12-31'", "k in (date '1970-01-01')"]
    if pa.types.is_timestamp(kind):
        return ["k >= timestamp '1970-01-01 00:00:00'", "k < timestamp '2000-01-01T00:00:00'"]
    if pa.types.is_decimal(kind):
        return ["k >= 0", "k is not null"]
    return ["k >= X'" + "00" * kind.byte_width + "'", "k is not null"]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")], ids=str)
def test_a_table_may_be_sharded_by_such_a_key(tmp_path: Path, kind: pa.DataType) -> None:
    table = make(tmp_path / "t", kind, sharding=mw.Bucket("k", 4))
    zone = None if kind == pa.date32() else datetime.timezone.utc  # noqa: UP017
    start = datetime.datetime(1969, 12, 1, tzinfo=zone)
    keys = [start + datetime.timedelta(days=n) for n in range(60)]
    keys = [key.date() for key in keys] if zone is None else keys
    with table.writer() as writer:
        writer.put({"k": keys, "v": list(range(60))})
        writer.delete(keys[:10])
        assert len(writer.shard_writers) == 4
        assert writer.get(keys[33])["v"] == 33
    assert table.get(keys[33])["v"] == 33
    assert table.get(keys[3]) is None
    table.compact()
    assert table.lookup(keys).num_rows == table.count_rows() == 50


@pytest.mark.parametrize("kind", [pa.uuid(), pa.binary(4), pa.decimal128(9, 2)], ids=str)
def test_a_key_that_the_format_does_not_bucket_is_refused_by_name(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(mw.InvalidInputError, match=r"'k' of type .* cannot be bucketed"):
        make(tmp_path / "t", kind, sharding=mw.Bucket("k", 4))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (pa.uuid(), b"short"),
        (pa.uuid(), "305515ee-9b23-47e0-86ab-7c87f3d0f873x"),
        (pa.binary(4), b"abc"),
        (pa.date32(), datetime.datetime(2026, 1, 1, 5)),
        (pa.timestamp("s"), datetime.datetime(2026, 1, 1, 0, 0, 0, 5)),
        (pa.timestamp("us"), datetime.date(2026, 1, 1)),
        (pa.decimal128(6, 2), Decimal("1.005")),
        (pa.decimal128(6, 2), Decimal("123456.00")),
        (pa.decimal128(6, 2), 1.5),
        (pa.decimal128(6, 2), None),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_and_never_rounded(tmp_path: Path, kind: pa.DataType, wrong: Any) -> None:
    table = make(tmp_path / "t", kind)
    with table.shard_writer() as writer:
        for attempt in (
            lambda: writer.put([{"k": wrong, "v": 1}]),
            lambda: writer.delete([wrong]),
            lambda: writer.get(wrong),
            lambda: table.lookup([wrong]),
        ):
            with pytest.raises(mw.InvalidInputError, match="k"):
                attempt()
        assert table.count_rows() == 0


def test_keys_that_are_there_twice_are_named_when_a_table_is_enabled(tmp_path: Path) -> None:
    twice = uuid.UUID(int=77)
    rows = pa.table({"k": pa.array(uuids_as_bytes([twice, uuid.UUID(int=1), twice]), pa.uuid())})
    lance.write_dataset(rows, tmp_path / "t")
    with pytest.raises(mw.InvalidInputError, match=f"1 values of the primary key.*{twice}"):
        mw.enable(str(tmp_path / "t"), primary_key="k")
    days = pa.table({"k": pa.array([1, 2, 3], pa.date32())})
    lance.write_dataset(days, tmp_path / "u")
    assert mw.enable(str(tmp_path / "u"), primary_key="k").get(datetime.date(1970, 1, 3)) is not None


# ---------------------------------------------------------------------------------------------------------- the peer


@pytest.mark.parametrize(("kind", "values"), OWN_KEYS, ids=IDS)
def test_what_the_peer_puts_is_safe_although_it_can_neither_read_nor_flush_it(
    tmp_path: Path, kind: pa.DataType, values: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """pylance 14 opens such a table and logs a put, but its own reads of it and its flush fail. If a newer one learns a type,
    this fails, and the type belongs to those that others know."""
    uri = tmp_path / "t"
    with caplog.at_level(logging.WARNING):
        table = make(uri, kind)
    assert "has a key that only lance-memwal knows" in caplog.text
    with table.shard_writer() as writer:
        writer.put([{"k": value, "v": i} for i, value in enumerate(values)])
        shard_id = writer.shard_id
    dataset = lance.dataset(str(uri))
    peer: Any = dataset.mem_wal_writer(shard_id)
    peer.put(pa.record_batch([pa.array(uuids_as_bytes(values[:1]), kind), pa.array([7])], schema=dataset.schema))
    for refused in (lambda: peer.lsm_scanner([]).to_table(), peer.close):
        with pytest.raises((OSError, ValueError, RuntimeError), match="unsupported type"):
            refused()
    expected = {value: i for i, value in enumerate(values)} | {values[0]: 7}
    check(uri, kind, values, expected)
    table.shard_writer().close()
    check(uri, kind, values, expected)
    table.compact()
    check(uri, kind, values, expected)


def test_a_table_with_a_key_that_others_know_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make(tmp_path / "t", pa.string())
    assert not caplog.text


BLOB = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})

DAY = datetime.date(2026, 3, 4)
ID = uuid.UUID(int=5)
# Per key type: the value that is stored, forms of it, and what is not a value of the type.
CASES: dict[str, tuple[pa.DataType, Any, list[Any], list[Any]]] = {
    "int16": (
        pa.int16(), 7,
        [7.0, Decimal("7.0"), np.int64(7), np.uint8(7), np.float32(7), np.array(7), pa.scalar(7, pa.int8()), pa.scalar(7.0)],
        [True, np.bool_(True), 7.5, "7", b"7", None, 1 << 15, 1 << 64, float("nan"), Decimal("7.5"), DAY, pa.scalar("7")],
    ),
    "bool": (pa.bool_(), True, [np.bool_(True), pa.scalar(True)], [1, 1.0, "true", np.int8(1), None]),
    "string": (pa.string(), "1", [np.str_("1"), pa.scalar("1", pa.large_string())], [1, 1.0, True, None, Decimal(1)]),
    "binary": (pa.large_binary(), b"ab", [np.bytes_(b"ab"), pa.scalar(b"ab"), bytearray(b"ab")], [7, None, 1.5]),
    "uuid": (pa.uuid(), ID, [str(ID), ID.bytes, ID.hex], [7, "no uuid", b"short", None]),
    "date": (pa.date32(), DAY, [pa.scalar(DAY)], [7.5, "2026-03-04", True, None]),
    "timestamp": (
        pa.timestamp("ms"), datetime.datetime(2026, 3, 4, 5),
        [pa.scalar(datetime.datetime(2026, 3, 4, 5))],
        [7.5, "2026-03-04", datetime.datetime(2026, 3, 4, 5, 0, 0, 1), None],
    ),
    "decimal": (
        pa.decimal128(9, 2), Decimal("1.50"),
        [Decimal("1.5"), pa.scalar(Decimal("1.5000"))],
        [Decimal("1.505"), 1.5, "1.50", True, None],
    ),
}  # fmt: skip
Verb = Callable[[Any], Any]


def verbs_of(reader: Any) -> dict[str, Verb]:
    """What a reader or a writer does with one key: True if it finds the row."""
    verbs: dict[str, Verb] = {
        "get": lambda key: reader.get(key) is not None,
        "lookup": lambda key: reader.lookup([key]).num_rows == 1,
        "get_blob": lambda key: reader.get_blob(key, "b") is not None,
    }
    if isinstance(reader, mw.Table):

        async def get(key: Any) -> bool:
            return await reader.aio.get(key) is not None

        verbs["aio.get"] = lambda key: asyncio.run(get(key))
    if isinstance(reader, mw.ShardWriter | mw.TableWriter):
        verbs["compare_and_set"] = lambda key: not reader.compare_and_set(key, None, None)
    return verbs


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[pa.DataType, Any, list[Any], list[Any]]:
    return CASES[request.param]


@pytest.fixture
def readers(tmp_path: Path, case: Any) -> Iterator[Callable[[bool], Mapping[str, Any]]]:
    """Every kind of reader, each of a table that holds one row; `composite`: the key has a second column."""
    opened: list[Any] = []

    def make(composite: bool) -> Mapping[str, Any]:
        kind, value = case[0], case[1]
        columns = [pa.field("id", kind, nullable=False), pa.field("k", pa.string(), nullable=False)]
        schema, key = pa.schema([*columns, BLOB]), ["id", "k"] if composite else ["id"]
        row = [{"id": value, "k": "x", "b": b"blob"}]
        found: dict[str, Any] = {}
        for name in ("memory", "sstable"):
            writer = mw.ShardWriter.open(
                str(tmp_path / f"alone {name}"), keyed_schema(schema, key), shard_id=uuid.uuid4(), durable_write=False
            )
            opened.append(writer)
            table = mw.create_table(str(tmp_path / name), schema, primary_key=key, writer_defaults={"fsync": False})
            routed = table.writer(compaction=None)
            opened.append(routed)
            for one in (writer, routed):
                one.put(row)
            if name == "sstable":
                writer.force_seal_active()
                writer.wait_for_flush_drain(60)
                routed.flush()
            own = next(iter(routed.shard_writers.values()))
            found |= {f"alone {name}": writer, f"shard {name}": own, f"writer {name}": routed, f"table {name}": table}
            found[f"view {name}"] = table.at(table.snapshot())
        data = pa.Table.from_pylist(row, schema)
        found["base"] = mw.create_table(str(tmp_path / "base"), data, primary_key=key)
        return found

    yield make
    for writer in opened:
        writer.abort()


def outcomes(readers: Mapping[str, Any], key: Any) -> set[Any]:
    """What all verbs of all readers make of a key."""

    def outcome(verb: Verb) -> Any:
        try:
            return verb(key)
        except mw.MemWalError as error:
            return type(error)

    return {outcome(verb) for reader in readers.values() for verb in verbs_of(reader).values()}


def test_a_key_in_any_form_is_found_or_refused_by_every_reader_alike(readers: Any, case: Any) -> None:
    _, value, forms, wrong = case
    every = readers(False)
    for form in [value, *forms]:
        for key in (form, (form,), [form], {"id": form}, {"k": "x", "id": form}):
            assert outcomes(every, key) == {True}, key
    for form in wrong:
        for key in (form, (form,), [form], {"id": form}):
            assert outcomes(every, key) == {mw.InvalidInputError}, key
    for key in (
        (),
        [],
        {},
        (value, value),
        {"k": "x"},
        {"id": value, "nope": 1},
        {"id": [value]},
        {value},
        [[value]],
        object(),
    ):
        assert outcomes(every, key) == {mw.InvalidInputError}, key


def test_a_composite_key_in_any_form_is_found_or_refused_by_every_reader_alike(readers: Any, case: Any) -> None:
    _, value, forms, wrong = case
    every = readers(True)
    for form in [value, *forms]:
        for key in ((form, "x"), [form, np.str_("x")], {"k": pa.scalar("x"), "id": form}):
            assert outcomes(every, key) == {True}, key
    for form in wrong:
        for key in ((form, "x"), [form, "x"], {"id": form, "k": "x"}):
            assert outcomes(every, key) == {mw.InvalidInputError}, key
    refused: list[Any] = [
        value,
        (value,),
        (value, "x", "x"),
        (value, None),
        (value, 1),
        {"id": value},
        ((value, "x"),),
        None,
    ]
    for key in refused:
        assert outcomes(every, key) == {mw.InvalidInputError}, key


def test_deletes_take_the_keys_that_reads_take(readers: Any, case: Any) -> None:
    _, value, forms, wrong = case
    writers = {name: one for name, one in readers(False).items() if isinstance(one, mw.ShardWriter | mw.TableWriter)}
    for writer in writers.values():
        for form in wrong:
            with pytest.raises(mw.InvalidInputError):
                writer.delete([form])
        for form in [value, *forms]:
            writer.put([{"id": value, "k": "x", "b": b"blob"}])
            assert writer.delete([form], count=True).matched == 1
            assert writer.get(form) is None
            with pytest.raises(mw.InvalidInputError, match="nope"):
                writer.delete({"id": form, "nope": 1})


def test_keys_from_an_iterator_are_taken_by_every_reader_and_writer(readers: Any, case: Any) -> None:
    value, every = case[1], readers(False).values()
    for keys in ([value], [(value,)], [{"id": value}]):
        assert {one.lookup(iter(keys)).num_rows for one in every} == {1}
    for writer in every:
        if isinstance(writer, mw.ShardWriter | mw.TableWriter):
            writer.put([{"id": value, "k": "x", "b": b"blob"}])
            with pytest.raises(mw.InvalidInputError, match="nope"):
                writer.delete(iter([{"id": value, "nope": 1}]))
            assert writer.delete(iter([value]), count=True).matched == 1
            writer.delete_nowait(iter([value])).wait()
            assert writer.delete(iter([])).written == 0


def test_a_row_with_a_blob_in_an_sstable_is_compared_without_a_base_table(tmp_path: Path) -> None:
    schema = keyed_schema(pa.schema([pa.field("id", pa.int8(), nullable=False), BLOB, ("v", pa.string())]), ["id"])
    with mw.ShardWriter.open(str(tmp_path / "t"), schema, shard_id=uuid.uuid4(), fsync=False) as writer:
        writer.put([{"id": 1, "b": b"blob", "v": "old"}])
        writer.force_seal_active()
        writer.wait_for_flush_drain(60)
        assert not writer.compare_and_set(1, {"b": b"other", "v": "old"}, None)
        assert writer.update([{"id": 1, "v": "new"}]).matched == 1
        assert writer.compare_and_set(1, {"b": b"blob", "v": "new"}, {"b": b"more", "v": "new"})
        blob = writer.get_blob(1, "b")
        assert blob is not None
        assert blob.read() == b"more"
        with pytest.raises(mw.InvalidInputError, match="'v' is not a blob column"):
            writer.get_blob(1, "v")
        writer.delete([1])
        assert writer.get_blob(1, "b") is None


def test_a_table_writer_counts_at_the_consistency_that_is_given(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="x", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        writer.put([{"x": x} for x in range(5)])
        writer.flush()
        writer.put([{"x": x} for x in range(5, 9)])
        assert [writer.count_rows("x > 1", at) for at in ("flushed", "fresh")] == [3, 7]
        assert [table.count_rows("x > 1", at) for at in ("flushed", "fresh")] == [3, 7]
