"""Reads of Spark: the table source, snapshots that the driver pins, loads as of an earlier time, and changes between two
times.
"""

import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.time_travel import tiers_of
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Scan
from lance_memwal.read.tiers import Tiers
from lance_memwal.spark.data_source import ChangesSource, MemWalSource
from lance_memwal.spark.distributed import is_big
from lance_memwal.spark.options import Options
from lance_memwal.spark.pin import Pin, pin_table, shards_of_pin
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.table import newest_base
from tests.harness.profile import scaled
from tests.kit.busy_life import BusyLife, make_table
from tests.kit.spark import VALUES, append_only, keyed
from tests.kit.tables import Interceptor


def load(spark: Any, uri: str, source: str = "memwal", **options: Any) -> Any:
    return spark.read.format(source).options(**options).load(uri)


def as_dict(frame: Any) -> dict[int, tuple[Any, ...]]:
    rows = frame.collect()
    found = {row["id"]: tuple(row)[1:] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def mixed_table(uri: str, seed: int) -> tuple[mw.Table, dict[int, tuple[Any, ...]]]:
    """Base rows, SSTables and log tails in several shards, made by random upserts and deletes; and what is right."""
    rng = random.Random(seed)
    table, model = keyed(uri, 3), {}
    for step in range(6):
        writer = table.writer()
        ids = rng.sample(range(300), 120)
        writer.put({"id": ids, "value": [f"{step}-{i}" for i in ids], "n": [step] * len(ids)}, missing="null")
        model |= {i: (f"{step}-{i}", step) for i in ids}
        gone = rng.sample(range(300), 40)
        writer.delete(gone)
        for i in gone:
            model.pop(i, None)
        if step < 5:
            writer.close()
        else:
            writer.abort()
        if step in (1, 3):
            table.compact()
    return table, model


@pytest.mark.parametrize("source", ["memwal", "memwal_py"])
def test_the_source_equals_a_dict_after_random_upserts_and_deletes(spark: Any, uri: str, source: str) -> None:
    table, model = mixed_table(uri, 1)
    assert {len(info.generations) > 0 and info.wal_tail > 0 for info in table.shards()} == {True}
    assert table.dataset.count_rows() > 0
    assert as_dict(load(spark, uri, source)) == model
    assert load(spark, uri, source).count() == len(model)
    old = {i: row for i, row in model.items() if row[1] == 2}
    assert as_dict(load(spark, uri, source, filter="n = 2")) == old  # newer rows that do not match hide older ones
    assert as_dict(load(spark, uri, source).where("n = 2")) == old
    narrow = load(spark, uri, source, columns="n,id", filter="id >= 100")
    assert narrow.columns == ["n", "id"]
    assert {row["id"]: row["n"] for row in narrow.collect()} == {i: row[1] for i, row in model.items() if i >= 100}


def test_one_load_is_one_snapshot_over_all_its_actions_and_flushed_leaves_the_log_out(spark: Any, uri: str) -> None:
    table = keyed(uri)
    with table.writer() as writer:
        writer.put({"id": list(range(50)), "n": [0] * 50}, missing="null")
    before = load(spark, uri, "memwal_py")
    other = table.writer()
    other.put({"id": list(range(40, 60)), "n": [1] * 20}, missing="null")
    assert before.count() == 50
    assert before.where("n = 1").count() == 0
    assert load(spark, uri).count() == 60
    assert load(spark, uri, consistency="flushed").count() == 50
    other.close()
    table.compact()
    assert before.where("n = 0").count() == 50
    assert load(spark, uri).where("n = 1").count() == 20


def test_a_frame_used_twice_with_different_filters_is_right(spark: Any, uri: str) -> None:
    table = keyed(uri)
    with table.writer() as writer:
        writer.put({"id": list(range(1000)), "n": [i % 10 for i in range(1000)]}, missing="null")
    frame = load(spark, uri)
    assert frame.where("n = 5").count() == 100
    assert frame.count() == 1000
    assert frame.where("n = 5").union(frame.where("n = 6")).count() == 200
    joined = frame.where("n = 5").alias("a").join(frame.alias("b"), "id")
    assert joined.count() == 100


def test_a_snapshot_that_collection_passed_says_load_again(spark: Any, uri: str) -> None:
    table = keyed(uri, 1)
    with table.writer() as writer:
        writer.put({"id": [1, 2]}, missing="null")
    frame = load(spark, uri, "memwal_py")
    with table.writer() as writer:
        writer.put({"id": [3]}, missing="null")
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(Exception, match="load again"):
        frame.collect()
    assert load(spark, uri).count() == 3


def test_an_append_only_table_shows_every_row_once_in_all_tiers(spark: Any, uri: str) -> None:
    table = append_only(uri)
    for step in range(3):
        writer = table.writer()
        writer.put({"id": list(range(20)), "value": [str(step)] * 20}, missing="null")
        if step == 2:
            writer.abort()
        else:
            writer.close()
        if step == 0:
            table.compact()
    counts = load(spark, uri).groupBy("value").count().collect()
    assert {row["value"]: row["count"] for row in counts} == {"0": 20, "1": 20, "2": 20}


def test_sql_views_are_read_and_inserted_into(spark: Any, uri: str) -> None:
    table = keyed(uri)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW view_of_table USING memwal OPTIONS (path '{uri}')")
    spark.sql("INSERT INTO view_of_table VALUES (1, 'one', 1), (2, 'two', 2)")
    spark.sql("INSERT INTO view_of_table VALUES (2, 'zwei', 2)")
    assert table.get(2) == {"id": 2, "value": "zwei", "n": 2}
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW view_of_table USING memwal OPTIONS (path '{uri}')")
    rows = spark.sql("SELECT id, value FROM view_of_table ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, "one"), (2, "zwei")]


def test_every_type_that_lance_holds_goes_through_spark_and_back(spark: Any, tmp_path: Any) -> None:
    kinds = [kind for kind, _, _ in VALUES if not pa.types.is_dictionary(kind)]
    values = [value for kind, _, value in VALUES if not pa.types.is_dictionary(kind)]
    fields = [pa.field("id", pa.int64(), nullable=False), *(pa.field(f"c{i}", k) for i, k in enumerate(kinds))]
    columns = [pa.array([1, 2]), *(pa.array([v, None], k) for v, k in zip(values, kinds, strict=True))]
    uris = [str(tmp_path / name) for name in ("from", "to")]
    for place in uris:
        mw.create_table(place, pa.schema(fields), primary_key="id", sharding=mw.Unsharded())
    with mw.open_table(uris[0]).writer() as writer:
        writer.put(pa.table(columns, schema=pa.schema(fields)))
    load(spark, uris[0]).write.format("memwal").mode("append").save(uris[1])
    first, second = (mw.open_table(place).scan().to_table().sort_by("id") for place in uris)
    assert second.equals(first)


def test_what_cannot_be_read_is_said_before_a_task_starts(spark: Any, uri: str, tmp_path: Any) -> None:
    keyed(uri)
    with pytest.raises(Exception, match="'nothing' is not in the table"):
        load(spark, uri, columns="nothing").count()
    with pytest.raises(Exception, match="no table"):
        load(spark, str(tmp_path / "elsewhere")).count()
    with pytest.raises(Exception, match="did you mean 'filter'"):
        load(spark, uri, filtre="n = 1").count()
    with pytest.raises(Exception, match=r"filter|nope"):
        load(spark, uri, filter="nope = 1").count()


def test_spark_still_mixes_up_pushed_filters_so_that_this_source_must_not_push_any(spark: Any) -> None:
    """A canary: when it fails, Spark is fixed, and push-down can be thought about."""
    from pushing_source import PushingSource

    from lance_memwal.spark.source import TableReader

    spark.dataSource.register(PushingSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("pushing_canary").load()
        assert frame.where("cat = 5").count() == 100
        assert frame.count() == 100  # 1000 would be right
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert "pushFilters" not in vars(TableReader)


def test_few_fresh_rows_take_no_task_of_their_own(uri: str) -> None:
    table = keyed(uri, 4)
    with table.writer(compaction=None) as writer:
        writer.put({"id": list(range(100)), "n": [0] * 100}, missing="null")
    table.compact()
    late = table.writer(compaction=None)
    late.put({"id": list(range(90, 120)), "n": [1] * 30}, missing="null")
    try:
        for rows_per_partition, parts in ((1000, 1), (100, 2)):
            source = MemWalSource({"path": uri, "rowsPerPartition": str(rows_per_partition)})
            reader = source.reader(source.schema())
            found = reader.partitions()
            assert len(found) == parts
            rows = [row for part in found for batch in reader.read(part) for row in batch.to_pylist()]
            assert sorted((row["id"], row["n"]) for row in rows) == [(i, int(i >= 90)) for i in range(120)]
    finally:
        late.close()


# What the driver pins is a read like any other: it says so where rows are missing, or where something is not
# understood.

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


def rebuilt(options: Options, pin: Pin) -> Tiers:
    """All shards of a pin, as tasks rebuild theirs."""
    return shards_of_pin(options, pin, pin.snapshot.shards)


def put(table: mw.Table, number: int) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [number], "v": ["a"]})


def test_a_base_that_was_restored_to_before_a_compaction_is_not_pinned(table: mw.Table) -> None:
    before = lance.dataset(table.uri).version
    put(table, 1)
    table.compact()
    put(table, 2)
    assert pin_table(Options(table.uri)).snapshot.shards
    lance.dataset(table.uri, version=before).restore()
    with pytest.raises(mw.TableReplacedError, match="keep_base"):
        pin_table(Options(table.uri))


def test_what_is_left_to_compact_is_counted_although_the_base_was_restored(table: mw.Table) -> None:
    before = lance.dataset(table.uri).version
    put(table, 1)
    table.compact()
    put(table, 2)
    lance.dataset(table.uri, version=before).restore()
    location = resolve(table.uri)
    assert is_big(location, BaseTable.need(location), 1)  # the compactor then says why it refuses
    assert not is_big(location, BaseTable.need(location), 1 << 40)


def test_a_manifest_of_a_newer_version_is_read_with_a_warning(table: mw.Table) -> None:
    put(table, 1)
    (shard,) = table.shards()
    newest = mw.ShardManifestStore(table.uri, shard.shard_id).list_versions()[-1]
    path = Path(table.uri) / paths.manifest_path(shard.shard_id, newest)
    path.write_bytes(path.read_bytes() + b"\xa2\x1f\x03abc")
    options = Options(table.uri)
    with pytest.warns(UserWarning, match="does not understand"):
        snapshot = rebuilt(options, pin_table(options))
    assert [view.shard_id for view in snapshot.shards] == [shard.shard_id]


def make_anew(table: mw.Table, *numbers: int) -> mw.Table:
    shutil.rmtree(table.uri)
    again = mw.create_table(table.uri, SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    for number in numbers:
        put(again, number)
    return again


def lengthen(table: mw.Table) -> None:
    for name in ("a", "b", "c"):
        lance.dataset(table.uri).update_config({name: "1"})


def shorten(table: mw.Table) -> None:
    """Leave the table as it is: made anew it has fewer versions than the pinned one."""


@pytest.mark.parametrize("first", [lengthen, shorten])
@pytest.mark.parametrize("second", [lengthen, shorten])
@pytest.mark.parametrize("numbers", [(), (2,), (2, 3, 4, 5)])
def test_a_task_never_reads_a_table_that_was_made_anew_after_the_pin(
    table: mw.Table,
    first: Callable[[mw.Table], None],
    second: Callable[[mw.Table], None],
    numbers: tuple[int, ...],
) -> None:
    first(table)
    put(table, 1)
    options = Options(table.uri)
    pin = pin_table(options)
    second(make_anew(table, *numbers))
    with pytest.raises(mw.TableReplacedError, match=r"another one.*load again"):
        rebuilt(options, pin)


def test_a_task_of_a_table_that_was_removed_says_so(table: mw.Table) -> None:
    put(table, 1)
    options = Options(table.uri)
    pin = pin_table(options)
    shutil.rmtree(table.uri)
    with pytest.raises(mw.TableReplacedError, match="removed"):
        rebuilt(options, pin)


def test_a_table_that_is_made_anew_at_any_request_of_a_pin_is_pinned_whole(table: mw.Table) -> None:
    put(table, 1)
    for at in count(1):
        calls = 0

        def seen(name: str, path: str, at: int = at) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                with ThreadPoolExecutor(1) as another:
                    another.submit(make_anew, table, 2 * at, 2 * at + 1).result()

        base = BaseTable.open(resolve(table.uri, wrap=lambda store: Interceptor(store, seen)))
        assert base is not None
        snapshot = Reader(NewestBase(base)).snapshot()
        if calls < at:
            assert at > 5
            return
        rows = Scan(lambda: tiers_of(resolve(table.uri), snapshot)).to_table()  # noqa: B023
        assert sorted(rows["id"].to_pylist()) == [2 * at, 2 * at + 1], f"made anew at request {at}"


def put_twice(table: mw.Table, value: str, *, flush: bool = True) -> None:
    writer = table.writer(compaction=None)
    writer.put({"id": [1, 2, 3, 4], "value": [value] * 4}, missing="null")
    writer.close() if flush else writer.abort()


def values(spark: Any, uri: str, moment: object) -> set[str]:
    loaded = spark.read.format("memwal").option("asOf", str(moment)).load(uri)
    return {row["value"] for row in loaded.collect()}


def test_a_load_as_of_a_moment_shows_what_was_there_then(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    put_twice(table, "first")
    table.compact()
    version = newest_base(table).version
    put_twice(table, "second", flush=False)
    then, snapshot = datetime.now(UTC), table.snapshot()
    table.checkpoints.create("before")
    time.sleep(0.01)
    for number in range(3):
        put_twice(table, f"later {number}")
        table.compact()
    assert values(spark, uri, version) == {"first"}
    assert values(spark, uri, snapshot) == values(spark, uri, then.isoformat()) == {"second"}
    table.gc(grace_seconds=0)
    assert values(spark, uri, "before") == {"second"}
    for moment in ("before", snapshot, then):
        shown = ms.read(spark, uri, columns=["value"], filter="value >= 'a'", as_of=moment)
        assert (shown.columns, {row["value"] for row in shown.collect()}) == (["value"], {"second"})
    assert ms.read(spark, uri, storage_options={"fsync": "false"}).columns == table.schema.names
    with pytest.raises(Exception, match="no checkpoint 'other'"):
        values(spark, uri, "other")


@pytest.mark.scaled
def test_a_load_equals_what_was_recorded_at_moments_of_a_busy_life(spark: Any, uri: str) -> None:
    table = make_table(uri, "plain")
    life, moments = BusyLife(table, "plain", 5), []
    try:
        for number in range(scaled(ci=2, prove=50)):
            steps = [life.step() for _ in range(10)]
            moments.append(life.moment(number, ", ".join(steps)))
    finally:
        life.close()
    for moment in moments:
        loaded = spark.read.format("memwal").option("asOf", moment.name or str(moment.snapshot)).load(uri)
        found = sorted(((row["id"], row["words"]) for row in loaded.select("id", "words").collect()), key=itemgetter(0))
        assert found == [(row["id"], row["words"]) for row in moment.said["rows"]], moment.step


def test_as_of_is_for_reads_of_the_whole_table() -> None:
    with pytest.raises(mw.InvalidInputError, match="asOf"):
        Options.parse({"path": "t", "asOf": "x", "consistency": "flushed"})
    assert Options.parse({"path": "t", "asof": "x"}).as_of == "x"


# What changed between two moments, as a batch: with the pure Python source, by the names that Spark's CHANGES has.

EXTRA = ["_change_type", "_commit_version", "_commit_timestamp", "_shard"]


def put_value(table: mw.Table, ids: list[int], value: str) -> None:
    with table.writer() as writer:
        writer.put({"id": ids, "value": [value] * len(ids)}, missing="null")


def changes(table: mw.Table, **options: str) -> list[tuple[Any, ...]]:
    """Type, key and value of every change, shard after shard, without Spark between."""
    source = ChangesSource({"path": table.uri, **options})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [(row["_change_type"], row["id"], row["value"]) for batch in batches for row in batch.to_pylist()]


def test_changes_between_two_moments_have_the_rows_before_and_after(uri: str) -> None:
    table = keyed(uri, 1)
    with table.writer() as writer:
        writer.put({"id": [1, 2], "value": ["a", "b"]}, missing="null")
        table.checkpoints.create("first")
        writer.put({"id": [1, 3], "value": ["c", "d"]}, missing="null")
        writer.delete([2])
        end = str(table.snapshot())
        writer.put({"id": [9], "value": ["late"]}, missing="null")
    update = [("update_preimage", 1, "a"), ("update_postimage", 1, "c"), ("insert", 3, "d"), ("delete", 2, "b")]
    assert changes(table, changesFrom="first", changesTo=end) == update
    assert changes(table, changesFrom="first") == [*update, ("insert", 9, "late")]
    assert changes(table, changesFrom="earliest", changesTo="first") == [("insert", 1, "a"), ("insert", 2, "b")]
    assert changes(table, changesFrom=end, changesTo="first") == []


def test_a_plan_that_is_read_twice_gives_the_same_rows(uri: str) -> None:
    table = keyed(uri, 2)
    put_value(table, [1, 2, 3], "a")
    source = ChangesSource({"path": uri, "changesFrom": "earliest"})
    reader = source.reader(source.schema())
    put_value(table, [1, 2, 3], "b")
    for _ in range(2):
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sorted(key for batch in batches for key in batch.column("id").to_pylist()) == [1, 2, 3]


def test_rows_before_the_columns_changed_are_shown_by_field_id(uri: str) -> None:
    table = keyed(uri, 1)
    put_value(table, [1], "a")
    table.checkpoints.create("first")
    put_value(table, [2], "b")
    table.compact()  # so that the rows before are in a version that has the old columns
    table.dataset.alter_columns({"path": "value", "name": "text"})
    table.dataset.add_columns(pa.schema([("value", pa.string())]))
    put_value(table, [1], "c")
    update = [("update_preimage", 1, None), ("update_postimage", 1, "c")]
    assert changes(table, changesFrom="first") == [("insert", 2, None), *update]


def test_every_row_of_a_table_without_a_key_is_an_insert(uri: str) -> None:
    table = append_only(uri, 1)
    put_value(table, [1, 1], "a")
    assert changes(table, changesFrom="earliest") == [("insert", 1, "a")] * 2


def test_what_is_no_range_is_refused(uri: str) -> None:
    keyed(uri, 1)
    with pytest.raises(InvalidInputError, match="'changesTo' needs 'changesFrom'"):
        ChangesSource({"path": uri, "changesTo": "now"})
    with pytest.raises(InvalidInputError, match="start must be 'earliest'"):
        changes(mw.open_table(uri), changesFrom="never")
    plain = ChangesSource({"path": uri})
    with pytest.raises(InvalidInputError, match="say with the option changesFrom"):
        plain.reader(plain.schema())
    ranged = ChangesSource({"path": uri, "changesFrom": "earliest"})
    with pytest.raises(InvalidInputError, match="are a batch"):
        ranged.streamReader(ranged.schema())


def test_spark_reads_them_without_the_face(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    put_value(table, [1, 2], "a")
    with table.writer() as writer:
        writer.delete([2])
    frame = spark.read.format("memwal_changes").options(changesFrom="earliest", columns="id,value").load(uri)
    assert frame.columns == ["id", "value", *EXTRA]
    found = [(row[0], row[1]) for row in frame.orderBy("id", "_commit_version").select("_change_type", "id").collect()]
    assert found == [("insert", 1), ("insert", 2), ("delete", 2)]
