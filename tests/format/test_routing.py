"""Rows reach the shard that every process and LanceDB would choose, once and in order."""

from __future__ import annotations

import datetime
import struct
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.lance.details import MemWalDetails, decode_details, encode_details
from lance_memwal.rows.bucket import bucket_of
from lance_memwal.rows.sharding import (
    Bucket,
    Identity,
    Manual,
    Sharding,
    Unsharded,
    bucket_shard_id,
    check_sharding,
    encode_identity_value,
    from_specs,
    identity_shard_id,
    route,
    shard_id_for,
    shard_id_of_name,
    shards_of_filter,
    shards_of_keys,
)
from lance_memwal.types import ShardingField, ShardingSpec
from tests.kit.effort import cpu_seconds

SCHEMA = pa.schema(
    [("id", pa.int64()), ("region", pa.string()), ("score", pa.float64()), ("tags", pa.list_(pa.string()))]
)
FIELD_IDS = {"id": 0, "region": 1, "score": 2, "tags": 3}
NAMES = {number: name for name, number in FIELD_IDS.items()}
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "pylance" / "details"


def rows(ids: list[int | None], regions: list[str | None]) -> pa.RecordBatch:
    scores = pa.array([float(n) for n in range(len(ids))])
    tags = pa.array([["t"]] * len(ids), pa.list_(pa.string()))
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(regions, pa.string()), scores, tags], schema=SCHEMA)


def test_shard_ids_are_those_that_lancedb_derives() -> None:
    assert shard_id_of_name(b"unsharded") == "aa48498d-ac91-59e2-8452-69f46010ace2"
    assert Unsharded().shard_ids() == ["aa48498d-ac91-59e2-8452-69f46010ace2"]
    assert Bucket("id", 4).shard_ids() == [
        "4a388480-a25b-59a8-b058-24217f980256",
        "8e131bde-8368-54ff-89d9-c2e1cc781b29",
        "e00299e4-8c4b-50fc-bbdd-ce8179135761",
        "1d8d46d4-1ffd-5f6e-9aea-466d5ea76fdb",
    ]
    assert identity_shard_id("eu", pa.string()) == "dedbd690-6632-519a-8f78-3919befe6c6a"
    assert Identity("region").shard_ids() is None
    assert Manual().shard_ids() is None
    assert [s.num_shards for s in (Manual(), Unsharded(), Bucket("id", 7), Identity("id"))] == [0, 1, 7, 0]


LANCEDB_CASES: list[tuple[pa.DataType, Any, bytes]] = [
    (pa.bool_(), True, b"\x01"),
    (pa.int8(), -3, b"\xfd"),
    (pa.int16(), 300, struct.pack("<h", 300)),
    (pa.int64(), -5, struct.pack("<q", -5)),
    (pa.uint32(), 2**32 - 1, b"\xff" * 4),
    (pa.uint64(), 2**64 - 1, b"\xff" * 8),
    (pa.string(), "", b""),
    (pa.string(), "héé", "héé".encode()),
    (pa.large_string(), "eu", b"eu"),
]


@pytest.mark.parametrize(("kind", "value", "encoded"), LANCEDB_CASES, ids=[f"{c[0]}-{c[1]}" for c in LANCEDB_CASES])
@pytest.mark.parametrize("transform", ["identity", "bucket"])
def test_lancedb_writes_a_row_into_the_shard_that_we_derive(
    tmp_path: Path, transform: str, kind: pa.DataType, value: Any, encoded: bytes
) -> None:
    assert encode_identity_value(value, kind) == encoded
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("c", kind, nullable=False, metadata=key), pa.field("v", pa.int64())])
    table: Any = lancedb.connect(str(tmp_path)).create_table("t", schema=schema)
    ours: Sharding
    if transform == "identity":
        ours, theirs = Identity("c"), lancedb.LsmWriteSpec.identity("c")
    else:
        ours, theirs = Bucket("c", 64), lancedb.LsmWriteSpec.bucket("c", 64)
    table.set_lsm_write_spec(theirs)
    data = pa.table({"c": pa.array([value], kind), "v": [1]}, schema=schema)
    table.merge_insert("c").when_matched_update_all().when_not_matched_insert_all().execute(data)
    found = [path.name for path in (tmp_path / "t.lance" / "_mem_wal").iterdir()]
    assert found == [shard_id_for(ours, value, kind=kind)]
    assert [shard for shard, _ in route(data.to_batches()[0], ours, schema)] == found


@given(
    st.lists(st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.text(max_size=3)), max_size=50),
    st.integers(1, 9),
)
def test_bucket_routing_keeps_every_row_once_in_order(pairs: list[tuple[int | None, str]], buckets: int) -> None:
    batch = rows([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    sharding = Bucket("id", buckets)
    expected: dict[str, list[int]] = {}
    for row, bucket in enumerate(bucket_of(batch["id"], buckets)):
        expected.setdefault(bucket_shard_id(int(bucket)), []).append(row)
    routed = route(batch, sharding, SCHEMA)
    assert {shard: part["score"].to_pylist() for shard, part in routed} == expected
    assert len(routed) == len(expected)
    for shard, part in routed:
        assert part.schema == SCHEMA
        assert part.equals(batch.take(pa.array(expected[shard], pa.int64())))
        sharding.check_rows(SCHEMA, shard, part)


@given(st.lists(st.text("aé日", max_size=2), max_size=40))
def test_identity_routing_gives_one_shard_per_value(regions: list[str]) -> None:
    batch = rows(list(range(len(regions))), list(regions))
    routed = dict(route(batch, Identity("region"), SCHEMA))
    assert set(routed) == {identity_shard_id(region, pa.string()) for region in regions}
    for region in set(regions):
        part = routed[identity_shard_id(region, pa.string())]
        assert part["id"].to_pylist() == [n for n, r in enumerate(regions) if r == region]


@pytest.mark.parametrize(
    ("kind", "values"), [(pa.bool_(), [True, False]), (pa.int16(), [3, -3]), (pa.uint64(), [2**64 - 1, 0])], ids=str
)
def test_identity_routing_takes_every_identity_type(kind: pa.DataType, values: list[Any]) -> None:
    batch = pa.record_batch([pa.array(values * 2, kind)], names=["c"])
    expected = [(identity_shard_id(value, kind), [value] * 2) for value in values]
    assert [(shard, part["c"].to_pylist()) for shard, part in route(batch, Identity("c"))] == expected


def test_a_sliced_batch_is_routed_by_its_own_rows() -> None:
    batch = rows(list(range(100)), ["x"] * 100).slice(40, 20)
    routed = route(batch, Bucket("id", 4), SCHEMA)
    assert sorted(i for _, part in routed for i in part["id"].to_pylist()) == list(range(40, 60))


@pytest.mark.parametrize("sharding", [Unsharded(), Bucket("id", 1), Bucket("id", 64), Identity("region")], ids=str)
def test_a_batch_that_goes_to_one_shard_is_not_copied(sharding: Sharding) -> None:
    assert route(rows([], []), sharding, SCHEMA) == []
    batch = rows([5, 5, 5], ["eu"] * 3)
    [(shard, same)] = route(batch, sharding, SCHEMA)
    assert same is batch
    value = {"Unsharded": None, "Bucket": 5, "Identity": "eu"}[type(sharding).__name__]
    assert shard == shard_id_for(sharding, value)


def test_a_null_goes_to_bucket_zero_but_cannot_choose_an_identity_shard() -> None:
    batch = rows([None], [None])
    assert [shard for shard, _ in route(batch, Bucket("region", 8), SCHEMA)] == [bucket_shard_id(0)]
    with pytest.raises(InvalidInputError, match="null"):
        route(batch, Identity("region"), SCHEMA)
    assert shard_id_for(Bucket("region", 8), None) == bucket_shard_id(0)
    with pytest.raises(InvalidInputError, match="null"):
        shard_id_for(Identity("region"), None)


def test_rows_are_hashed_with_the_type_of_the_table_not_of_the_batch() -> None:
    narrow = pa.record_batch([pa.array([1, 2, 3], pa.int32())], names=["id"])
    wide = pa.record_batch([pa.array([1, 2, 3], pa.int64())], names=["id"])
    by_table = [(s, part["id"].to_pylist()) for s, part in route(narrow, Bucket("id", 512), SCHEMA)]
    assert by_table == [(s, part["id"].to_pylist()) for s, part in route(wide, Bucket("id", 512))]
    assert by_table != [(s, part["id"].to_pylist()) for s, part in route(narrow, Bucket("id", 512))]


def test_a_column_that_cannot_become_the_tables_type_is_refused() -> None:
    batch = pa.record_batch([pa.array(["x"])], names=["id"])
    with pytest.raises(InvalidInputError, match="does not fit the table"):
        route(batch, Bucket("id", 4), SCHEMA)
    with pytest.raises(InvalidInputError, match="'id' is missing"):
        route(pa.record_batch([pa.array([1])], names=["other"]), Bucket("id", 4), SCHEMA)


def test_a_nested_column_that_pylance_chose_is_routed() -> None:
    batch = pa.record_batch([pa.array([{"a": 1}, None, {"a": 2}])], names=["s"])
    shards = [shard for shard, part in route(batch, Bucket("s.a", 1000)) for _ in range(part.num_rows)]
    assert sorted(shards) == sorted(bucket_shard_id(n) for n in bucket_of(pa.array([1, None, 2]), 1000).tolist())


def test_manual_shards_cannot_route() -> None:
    with pytest.raises(InvalidInputError, match="manual shards"):
        route(rows([1], ["x"]), Manual(), SCHEMA)
    with pytest.raises(InvalidInputError, match="manual shards"):
        shard_id_for(Manual(), 1)
    Manual().check_rows(SCHEMA, str(uuid.UUID(int=1)), rows([1], ["x"]))


def test_rows_of_another_shard_are_refused_at_the_shard() -> None:
    with pytest.raises(InvalidInputError, match="rows belong to shard"):
        Bucket("id", 64).check_rows(SCHEMA, bucket_shard_id(0), rows([1, 2, 3], ["x"] * 3))


def test_a_value_means_the_columns_value_and_never_a_bucket_number() -> None:
    [bucket] = bucket_of(pa.array([2]), 16).tolist()
    assert bucket != 2
    assert shard_id_for(Bucket("id", 16), 2) == bucket_shard_id(bucket)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, pa.bool_()),
        (7, pa.int64()),
        (2.5, pa.float64()),
        ("x", pa.string()),
        (datetime.date(2024, 2, 29), pa.date32()),
        (datetime.datetime(2024, 2, 29, 12), pa.timestamp("us")),
        (datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC), pa.timestamp("us", tz="UTC")),
        (pa.scalar(7, pa.int8()), pa.int8()),
        (pa.scalar(123456789, pa.timestamp("ns")), pa.timestamp("ns")),
    ],
    ids=str,
)
def test_a_plain_value_has_its_usual_type_and_a_scalar_its_own(value: Any, kind: pa.DataType) -> None:
    array = pa.repeat(value, 1) if isinstance(value, pa.Scalar) else pa.array([value], kind)
    assert shard_id_for(Bucket("c", 1000), value) == bucket_shard_id(int(bucket_of(array, 1000)[0]))


@pytest.mark.parametrize(
    ("value", "kind"), [(b"x", None), ("x", pa.int64()), (1.5, pa.int64()), (300, pa.int8()), ("\ud800", pa.string())]
)
def test_a_value_that_no_such_column_can_hold_is_refused(value: Any, kind: pa.DataType | None) -> None:
    for sharding in (Bucket("c", 4), Identity("c")):
        with pytest.raises(InvalidInputError):
            shard_id_for(sharding, value, kind=kind)


def test_pruning_names_every_shard_that_can_hold_a_value() -> None:
    values = [1, 5, None, 2**40]
    by_64 = Bucket("id", 64)
    expected = {bucket_shard_id(n) for n in bucket_of(pa.array(values), 64).tolist()}
    assert by_64.shards_for(values, pa.int64()) == frozenset(expected)
    assert by_64.shards_for(pa.array([1], pa.int8()), pa.int64()) == frozenset([shard_id_for(by_64, 1)])
    eu = identity_shard_id("eu", pa.string())
    assert Identity("region").shards_for(["eu", None], pa.string()) == frozenset([eu])
    assert Unsharded().shards_for([1], pa.int64()) == frozenset(Unsharded().shard_ids() or ())
    assert by_64.shards_for([], pa.int64()) == frozenset()


@pytest.mark.parametrize("values", [[1.5], ["x"], [2**70], [object()]], ids=["fraction", "text", "huge", "object"])
def test_pruning_never_guesses_from_a_value_that_does_not_convert(values: list[Any]) -> None:
    assert Bucket("id", 4).shards_for(values, pa.int64()) is None
    assert Manual().shards_for(values, pa.int64()) is None


BY_HAND = str(uuid.UUID(int=7, version=4))


@pytest.mark.parametrize("sharding", [Bucket("region", 16), Identity("region")])
def test_read_skips_routed_shards_that_cannot_match_and_no_manual_shard(sharding: Sharding) -> None:
    eu, us = shard_id_for(sharding, "eu"), shard_id_for(sharding, "us")
    for asked in ("region = 'eu' and score > 1", (pc.field("region") == "eu") & (pc.field("score") > 1)):
        found = shards_of_filter(sharding, asked, SCHEMA, ["region"], [eu, us, BY_HAND])
        assert found == {eu, BY_HAND}
    keys = pa.record_batch({"id": pa.array([1]), "region": pa.array(["us"])})
    assert shards_of_keys(sharding, ["id", "region"], keys.column, [eu, us, BY_HAND]) == {us, BY_HAND}


@pytest.mark.parametrize("sharding", [Bucket("region", 16), Identity("region"), Unsharded(), Manual()])
def test_no_shard_is_left_out_where_all_of_them_can_match(sharding: Sharding) -> None:
    listed = [BY_HAND]
    for asked in ("score > 1", "region > 'eu'", pc.field("region") > "eu", None):
        assert shards_of_filter(sharding, asked, SCHEMA, ["region"], listed) is None
    assert shards_of_filter(sharding, "region = 'eu'", SCHEMA, ["id"], listed) is None
    assert shards_of_keys(sharding, ["id"], pa.record_batch({"id": pa.array([1])}).column, listed) is None


@pytest.mark.parametrize(
    "sharding", [Manual(), Unsharded(), Bucket("id", 4), Bucket("region", 1024), Identity("region")]
)
def test_a_sharding_survives_the_tables_details(sharding: Sharding) -> None:
    check_sharding(sharding, SCHEMA)
    spec = sharding.spec(SCHEMA, FIELD_IDS)
    details = MemWalDetails(num_shards=sharding.num_shards, sharding_specs=(spec,) if spec else ())
    assert from_specs(decode_details(encode_details(details)).sharding_specs, NAMES) == sharding


@pytest.mark.parametrize(
    ("name", "sharding"),
    [("default", Manual()), ("unsharded", Unsharded()), ("bucket", Bucket("id", 4)), ("identity", Identity("name"))],
)
def test_our_details_of_a_sharding_are_the_bytes_of_pylance(name: str, sharding: Sharding) -> None:
    schema = pa.schema([("id", pa.int64()), ("val", pa.float32()), ("name", pa.string())])
    spec = sharding.spec(schema, {"id": 0, "val": 1, "name": 2})
    details = MemWalDetails(sharding.num_shards, (spec,) if spec else (), maintain_all_indexes=True)
    data = (GOLDEN / f"{name}.binpb").read_bytes()
    assert encode_details(details) == data
    assert from_specs(decode_details(data).sharding_specs, {0: "id", 1: "val", 2: "name"}) == sharding


@pytest.mark.parametrize(
    "kind",
    [pa.bool_(), pa.int8(), pa.uint64(), pa.string(), pa.large_string(), pa.float64(), pa.date32(), pa.binary()],
    ids=str,
)
def test_we_take_and_refuse_the_column_types_that_pylance_does(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("c", kind)])
    options: list[tuple[Sharding, dict[str, Any]]] = [
        (Bucket("c", 4), {"bucket_column": "c", "num_buckets": 4}),
        (Identity("c"), {"identity_column": "c"}),
    ]
    for number, (sharding, theirs) in enumerate(options):
        dataset = lance.write_dataset(schema.empty_table(), str(tmp_path / str(number)))
        try:
            dataset.initialize_mem_wal(**theirs)
        except OSError:
            with pytest.raises(InvalidInputError):
                check_sharding(sharding, schema)
            continue
        check_sharding(sharding, schema)
        spec = sharding.spec(schema, {"c": 0})
        assert spec is not None
        recorded: Any = lance.dataset(dataset.uri).mem_wal_index_details()
        assert recorded["sharding_specs"][0]["fields"][0]["result_type"] == spec.fields[0].result_type


BUCKET_FIELD = ShardingField("bucket", (0,), "bucket", "int32", {"num_buckets": "4"})


@pytest.mark.parametrize(
    "fields",
    [
        (replace(BUCKET_FIELD, transform="year"),),
        (replace(BUCKET_FIELD, transform=None, expression="id % 4"),),
        (replace(BUCKET_FIELD, expression="id"),),
        (replace(BUCKET_FIELD, source_ids=(0, 1)),),
        (BUCKET_FIELD, BUCKET_FIELD),
        (),
    ],
    ids=["transform", "expression", "both", "two-sources", "two-fields", "no-field"],
)
def test_a_sharding_that_we_do_not_know_is_never_guessed(fields: tuple[ShardingField, ...]) -> None:
    with pytest.raises(UnsupportedFormatError):
        from_specs((ShardingSpec(1, fields),), NAMES)


@pytest.mark.parametrize("text", ["", "0", "1025", "-4", "4.0", "٤", "9" * 5_000])
def test_a_stored_number_of_buckets_or_a_lost_column_is_corrupt(text: str) -> None:
    spec = ShardingSpec(1, (replace(BUCKET_FIELD, parameters={"num_buckets": text}),))
    with pytest.raises(CorruptDataError, match="number of buckets"):
        from_specs((spec,), NAMES)
    with pytest.raises(CorruptDataError, match="field 0"):
        from_specs((ShardingSpec(1, (BUCKET_FIELD,)),), {1: "region"})


@pytest.mark.parametrize("num_buckets", [0, 1025, -1, True, 4.0, "4"])
def test_a_number_of_buckets_out_of_range_is_refused(num_buckets: Any) -> None:
    with pytest.raises(InvalidInputError, match="num_buckets"):
        Bucket("id", num_buckets)
    for column in ("", None, 3):
        for make in (lambda column=column: Bucket(column, 4), lambda column=column: Identity(column)):
            with pytest.raises(InvalidInputError, match="by its name"):
                make()


@pytest.mark.parametrize(
    ("sharding", "reason"),
    [
        (Bucket("nope", 4), "is not in the table"),
        (Identity("nope"), "is not in the table"),
        (Bucket("tags", 4), "scalar"),
        (Identity("tags"), "integers, booleans or strings"),
        (Identity("score"), "integers, booleans or strings"),
        ("bucket", "sharding must be"),
    ],
    ids=str,
)
def test_a_sharding_that_does_not_fit_the_table_is_refused_with_the_reason(sharding: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        check_sharding(sharding, SCHEMA)


def test_a_column_outside_the_key_is_refused_unless_the_user_allows_keys_across_shards() -> None:
    for sharding in (Bucket("region", 4), Identity("region")):
        with pytest.raises(InvalidInputError, match="not part of the primary key"):
            check_sharding(sharding, SCHEMA, primary_key=["id"])
        check_sharding(sharding, SCHEMA, primary_key=["id"], allow_keys_across_shards=True)
        check_sharding(sharding, SCHEMA, primary_key=["id", "region"])
        check_sharding(sharding, SCHEMA)
    check_sharding(Unsharded(), SCHEMA, primary_key=["id"])


def test_a_million_rows_are_routed_without_a_step_of_python_for_each() -> None:
    batch = pa.record_batch([pa.array(np.arange(1_000_000)), pa.array(np.arange(1_000_000) % 7)], names=["id", "part"])
    one_step_each = cpu_seconds(lambda: [(row, row % 64) for row in batch["id"].to_pylist()], tries=3)
    for sharding, count in ((Bucket("id", 64), 64), (Identity("part"), 7)):
        assert cpu_seconds(lambda sharding=sharding: route(batch, sharding), tries=3) < one_step_each
        routed = route(batch, sharding)
        assert len(routed) == count
        assert sum(part.num_rows for _, part in routed) == 1_000_000
        assert all(pc.all(pc.greater(part["id"][1:], part["id"][:-1])).as_py() for _, part in routed)
