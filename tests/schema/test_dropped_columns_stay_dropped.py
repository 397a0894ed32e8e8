"""Rows of a dropped column do not come back in a new column with its field id (RFC 0036); field ids of Lance 12 and older."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance import wire
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.manifest import TRANSACTION_FILE, TRANSACTION_SECTION, join_manifest_file, version_path
from lance_memwal.process.cache import CACHE
from lance_memwal.spark.distributed import distributed_compactor
from lance_memwal.spark.stages import Job
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender

# Generations as Lance 12 and older write them, with field ids 0..n in column order.
_FOOTER_BYTES = 16


def flush_by_pylance(uri: str, shard_id: str, *batches: object) -> None:
    """Each batch becomes one generation of a shard that pylance writes."""
    for batch in batches:
        dataset = lance.dataset(uri)
        writer = dataset.mem_wal_writer(
            shard_id, durable_write=True, max_wal_buffer_size=1, max_wal_flush_interval_ms=10
        )
        writer.put(batch)
        writer.close()


def number_by_position(uri: str, shard_id: str, *, with_transaction: bool = True) -> list[Path]:
    """Give every generation of a shard the field ids that old versions write; returns their directories.

    The manifest of a generation with duplicate keys does not name its transaction (`with_transaction=False`).
    """
    directories = sorted((Path(uri) / "_mem_wal" / shard_id).glob("*_gen_*"))
    for directory in directories:
        rows = lance.dataset(str(directory)).to_table()
        for name in ("data", "_versions", "_transactions"):
            shutil.rmtree(directory / name)
        lance.write_dataset(rows, str(directory))
        if not with_transaction:
            _forget_transaction(directory / version_path(1))
    return directories


def _forget_transaction(path: Path) -> None:
    data = path.read_bytes()
    start = int.from_bytes(data[-_FOOTER_BYTES : -_FOOTER_BYTES + 8], "little")
    message = wire.Message(data[start + 4 : -_FOOTER_BYTES])
    left = [field for field in message.fields if field.number not in (TRANSACTION_FILE, TRANSACTION_SECTION)]
    path.write_bytes(join_manifest_file(left))


Alter = Callable[[lance.LanceDataset], object]
TEXT = pa.string()
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), "ssn 123"),
    "number": (pa.int64(), 17),
    "list": (pa.list_(pa.int32()), [1, 2]),
    "struct": (POINT, {"x": 1, "y": "a"}),
    "list_of_structs": (pa.list_(POINT), [{"x": 1, "y": "a"}]),
}
TIERS = ("memtable", "log", "sstable")


def at(uri: str) -> lance.LanceDataset:
    return lance.dataset(uri)


def add_column(name: str, kind: pa.DataType) -> Alter:
    return lambda dataset: dataset.add_columns(pa.schema([(name, kind)]))


def drop_field(name: str) -> Alter:
    return lambda dataset: dataset.drop_columns([name])


def rename_column(path: str, name: str) -> Alter:
    return lambda dataset: dataset.alter_columns({"path": path, "name": name})


def change(uri: str, *steps: Alter) -> None:
    for step in steps:
        step(at(uri))


def forget_versions(uri: str, *kept: int) -> None:
    """Clean up all base versions but the newest and those that are `kept`."""
    for version in kept:
        at(uri).tags.create(f"kept-{version}", version)
    at(uri).cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    assert {item["version"] for item in at(uri).versions()} == {at(uri).version, *kept}


def table_with_secret(place: Path, tier: str, kind: pa.DataType = TEXT, value: Any = "ssn 123") -> tuple[str, Any]:
    """A table with row 1, which has `value` as `secret` in one tier; the base table has row 9 and no `secret` in any file."""
    uri = str(place / "t")
    mw.create_table(uri, pa.table({"id": [9], "b": [90]}), primary_key="id", sharding=mw.Unsharded())
    change(uri, add_column("secret", kind))
    writer = mw.open_table(uri).writer(compaction=None)
    writer.put([{"id": 1, "b": 10, "secret": value}])
    assert mw.open_table(uri).get(1) == {"id": 1, "b": 10, "secret": value}  # what is cached must not come back either
    if tier == "sstable":
        writer.flush()
        writer.close()
    elif tier == "log":
        writer.abort()
    return uri, writer


def check_all_steps(uri: str, expected: dict[str, Any]) -> None:
    """Row 1 is `expected` for every read, now and after a flush and a compaction."""
    check_reads(uri, expected)
    table = mw.open_table(uri)
    table.flush(idle_seconds=0, force=True)
    check_reads(uri, expected)
    assert table.verify().ok
    table.compact()
    check_reads(uri, expected)
    assert at(uri).to_table(filter="id = 1").to_pylist() == [expected]


def check_reads(uri: str, expected: dict[str, Any]) -> None:
    table = mw.open_table(uri)
    name = list(expected)[2]
    assert table.get(1) == expected
    assert table.lookup([1]).to_pylist() == [expected]
    assert table.scan(filter="id = 1").to_table().to_pylist() == [expected]
    assert table.scan([name, "id"], "id = 1").to_table().to_pylist() == [{name: expected[name], "id": 1}]
    assert table.count_rows(f"{name} is null") == (2 if expected[name] is None else 1)


def feed_rows(uri: str, **options: Any) -> list[dict[str, Any]]:
    with mw.open_table(uri).changes(until="now", **options) as feed:
        return [row for batch in feed for row in batch.to_pylist()]


# ------------------------------------------------------------------------------------------ while all versions are kept


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", ["title", "secret"])
def test_values_of_dropped_column_are_null_in_new_column(tmp_path: Path, tier: str, values: str, name: str) -> None:
    kind, value = VALUES[values]
    uri, writer = table_with_secret(tmp_path, tier, kind, value)
    ids = [field.id() for field in at(uri).lance_schema.fields()]
    change(uri, drop_field("secret"), add_column(name, kind))
    assert [field.id() for field in at(uri).lance_schema.fields()] == ids  # Lance gave the id again
    check_reads(uri, {"id": 1, "b": 10, name: None})
    writer.close()
    check_all_steps(uri, {"id": 1, "b": 10, name: None})


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("values", VALUES)
def test_values_of_renamed_column_stay(tmp_path: Path, tier: str, values: str) -> None:
    kind, value = VALUES[values]
    uri, writer = table_with_secret(tmp_path, tier, kind, value)
    change(uri, rename_column("secret", "hidden"), rename_column("hidden", "title"))
    check_reads(uri, {"id": 1, "b": 10, "title": value})
    writer.close()
    check_all_steps(uri, {"id": 1, "b": 10, "title": value})


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["z", "y", None], ids=["z", "y", "renamed"])
def test_values_of_nested_field_stay_if_it_is_renamed_and_not_if_dropped(
    tmp_path: Path, tier: str, name: str | None
) -> None:
    uri, writer = table_with_secret(tmp_path, tier, POINT, {"x": 1, "y": "a"})
    if name is None:
        change(uri, rename_column("secret.y", "z"), rename_column("secret", "point"))
        expected: dict[str, Any] = {"point": {"x": 1, "z": "a"}}
    else:
        change(uri, drop_field("secret.y"), add_column("secret", pa.struct([(name, pa.string())])))
        expected = {"secret": {"x": 1, name: None}}
    writer.close()
    check_all_steps(uri, {"id": 1, "b": 10, **expected})


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["title", "secret"])
def test_feeds_and_images_show_null_for_dropped_column(tmp_path: Path, tier: str, name: str) -> None:
    uri, writer = table_with_secret(tmp_path, tier)
    snapshot = mw.open_table(uri).snapshot()
    change(uri, drop_field("secret"), add_column(name, pa.string()))
    writer.close()
    with mw.open_table(uri).writer(compaction=None) as writer:
        writer.put([{"id": 1, "b": 11, name: "new"}])
    assert [row[name] for row in feed_rows(uri)] == [None, "new"]
    steps = [(row["_op"], row[name]) for row in feed_rows(uri, before=True)]
    assert steps == [("insert", None), ("update_before", None), ("update_after", "new")]
    table = mw.open_table(uri)
    found = table.diff(snapshot, table.snapshot(), before=True).to_pylist()
    assert [row[name] for row in found] == [None, "new"]


def test_rows_put_after_column_was_added_again_stay(tmp_path: Path) -> None:
    uri, writer = table_with_secret(tmp_path, "memtable")
    change(uri, drop_field("secret"), add_column("secret", pa.string()))
    writer.evolve_schema()
    writer.put([{"id": 2, "b": 20, "secret": "new"}])
    table = mw.open_table(uri)
    assert [table.get(key)["secret"] for key in (1, 2)] == [None, "new"]
    writer.close()
    table.compact()
    assert [table.get(key)["secret"] for key in (1, 2)] == [None, "new"]


@pytest.mark.parametrize("decided", [True, False])
def test_shared_log_is_flushed_by_the_same_rule(tmp_path: Path, decided: bool) -> None:
    uri, _ = table_with_secret(tmp_path, "sstable")
    shard_id = mw.open_table(uri).shards()[0].shard_id
    sink = TableAppender(OnceAppender(uri))
    sink.append(shard_id, [pa.record_batch({"id": [1], "b": [10], "secret": ["shared"]})])
    if decided:
        change(uri, drop_field("secret"), add_column("title", pa.string()))
    else:
        change(uri, *UNDECIDED["dropped"])
        forget_versions(uri)
        table = mw.open_table(uri)
        assert "reused_ids" in table.flush(idle_seconds=0, force=True).shards[0].skipped
        table.repair(reused_ids="values", dry_run=False)
    check_all_steps(uri, {"id": 1, "b": 10, "title": None if decided else "shared"})


def test_distributed_compaction_uses_the_same_rule(tmp_path: Path) -> None:
    uri, _ = table_with_secret(tmp_path, "sstable")
    change(uri, drop_field("secret"), add_column("title", pa.string()))
    compact_by_tasks(uri)
    assert at(uri).to_table(filter="id = 1").to_pylist() == [{"id": 1, "b": 10, "title": None}]


def compact_by_tasks(uri: str) -> int:
    table = mw.open_table(uri)
    job = Job(uri, 1 << 20, False)
    compactor = distributed_compactor(
        job, lambda arguments, run: [run(a) for a in arguments], table.location, lambda: BaseTable.need(table.location)
    )
    return compactor.run().rows_written


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("put_later", [False, True])
def test_restore_brings_values_back_but_not_those_of_the_later_column(
    tmp_path: Path, tier: str, put_later: bool
) -> None:
    uri, writer = table_with_secret(tmp_path, tier)
    version = at(uri).version
    if put_later:
        writer.close()
    change(uri, drop_field("secret"), add_column("title", pa.string()))
    if put_later:
        writer = mw.open_table(uri).writer(compaction=None)
        writer.put([{"id": 1, "b": 10, "title": "other"}])
    lance.dataset(uri, version=version).restore()
    writer.close()
    check_all_steps(uri, {"id": 1, "b": 10, "secret": None if put_later else "ssn 123"})


# ----------------------------------------------------------------------------------------- where versions are cleaned up


@pytest.mark.parametrize("tier", ["log", "sstable"])
def test_equal_names_are_one_column_without_versions(tmp_path: Path, tier: str) -> None:
    uri, _ = table_with_secret(tmp_path, tier)
    change(uri, drop_field("secret"), add_column("secret", pa.string()))
    forget_versions(uri)
    check_all_steps(uri, {"id": 1, "b": 10, "secret": "ssn 123"})


@pytest.mark.parametrize("tier", ["log", "sstable"])
@pytest.mark.parametrize("name", ["title", "secret"])
def test_kept_version_without_the_id_decides(tmp_path: Path, tier: str, name: str) -> None:
    uri, _ = table_with_secret(tmp_path, tier)
    change(uri, drop_field("secret"))
    dropped = at(uri).version
    change(uri, add_column("other", pa.string()), rename_column("other", name), add_column("more", pa.string()))
    forget_versions(uri, dropped)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_all_steps(uri, {"id": 1, "b": 10, name: None, "more": None})


@pytest.mark.parametrize("tier", ["log", "sstable"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_younger_data_file_does_not_vouch_for_column_of_same_name(tmp_path: Path, tier: str, rewritten: bool) -> None:
    """All data files hold the id of the new `secret`, and none of them is as old as the row."""
    uri = str(tmp_path / "t")
    key = pa.schema([("id", pa.int64()), ("b", pa.int64())])
    mw.create_table(uri, key.empty_table(), primary_key="id", sharding=mw.Unsharded())
    if rewritten:
        append_base_rows(uri, 2)
    change(uri, add_column("secret", TEXT))
    writer = mw.open_table(uri).writer(compaction=None)
    writer.put([{"id": 1, "b": 10, "secret": "ssn 123"}])
    if tier == "sstable":
        writer.flush()
    writer.abort()
    change(uri, drop_field("secret"), add_column("secret", TEXT))
    if rewritten:
        at(uri).optimize.compact_files()
    else:
        lance.write_dataset(pa.table({"id": [8], "b": [80], "secret": ["new"]}), uri, mode="append")
    CACHE.clear()
    table = mw.open_table(uri)
    expected = {"id": 1, "b": 10, "secret": None}
    assert table.get(1) == expected
    assert table.scan(filter="id = 1").to_table().to_pylist() == [expected]
    table.flush(idle_seconds=0, force=True)
    table.compact()
    assert at(uri).to_table(filter="id = 1").to_pylist() == [expected]


@pytest.mark.parametrize("tier", ["log", "sstable"])
def test_kept_rename_decides_without_version_of_the_rows(tmp_path: Path, tier: str) -> None:
    uri, _ = table_with_secret(tmp_path, tier)
    change(uri, add_column("c", pa.string()))
    before = at(uri).version
    change(uri, rename_column("secret", "title"))
    renamed = at(uri).version
    change(uri, drop_field("c"))
    forget_versions(uri, before, renamed)
    check_all_steps(uri, {"id": 1, "b": 10, "title": "ssn 123"})


UNDECIDED: dict[str, tuple[Alter, ...]] = {
    "dropped": (
        drop_field("secret"),
        add_column("title", pa.string()),
        rename_column("b", "b2"),
        rename_column("b2", "b"),
    ),
    "renamed": (rename_column("secret", "title"), rename_column("b", "b2"), rename_column("b2", "b")),
}


@pytest.mark.parametrize("tier", ["log", "sstable"])
@pytest.mark.parametrize("steps", UNDECIDED)
@pytest.mark.parametrize("decision", ["values", "null"])
def test_undecided_values_are_kept_until_repair(tmp_path: Path, tier: str, steps: str, decision: str) -> None:
    uri, _ = table_with_secret(tmp_path, tier)
    change(uri, *UNDECIDED[steps])
    forget_versions(uri)
    null = {"id": 1, "b": 10, "title": None}
    with pytest.warns(UserWarning, match="reused_ids"):
        check_reads(uri, null)
    with pytest.warns(UserWarning, match="reused_ids"):
        assert [row["title"] for row in feed_rows(uri)] == [None]
    table = mw.open_table(uri)
    report = table.verify()
    assert {problem.invariant for problem in report.problems} == {"V-16"}
    assert "reused_ids" in report.problems[0].remedy
    flushed = table.flush(idle_seconds=0, force=True)
    if tier == "log":
        assert "reused_ids" in flushed.shards[0].skipped
        with pytest.raises(mw.UnsupportedFormatError, match="reused_ids"):
            table.writer().put([{"id": 2, "b": 20, "title": "x"}])
    assert table.compact().generations == 0
    assert compact_by_tasks(uri) == 0
    assert at(uri).count_rows() == 1
    assert not table.repair(reused_ids=decision).actions[0].done
    assert table.repair(reused_ids=decision, dry_run=False).actions[0].done
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_all_steps(uri, null if decision == "null" else {**null, "title": "ssn 123"})


def test_generations_after_an_undecided_one_wait_for_it(tmp_path: Path) -> None:
    uri, _ = table_with_secret(tmp_path, "sstable")
    change(uri, *UNDECIDED["dropped"])
    forget_versions(uri)
    with mw.open_table(uri).writer(compaction=None) as writer:
        writer.put([{"id": 1, "b": 11, "title": "new"}, {"id": 2, "b": 20, "title": "x"}])
    table = mw.open_table(uri)
    assert table.compact().generations == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing of the undecided generation is shown
        assert table.get(1) == {"id": 1, "b": 11, "title": "new"}
    table.repair(reused_ids="null", dry_run=False)
    assert table.compact().generations == 2
    assert table.get(1) == {"id": 1, "b": 11, "title": "new"}


def test_decision_does_not_hold_for_later_rows(tmp_path: Path) -> None:
    uri, _ = table_with_secret(tmp_path, "sstable")
    change(uri, *UNDECIDED["dropped"])
    forget_versions(uri)
    table = mw.open_table(uri)
    table.repair(reused_ids="null", dry_run=False)
    change(uri, rename_column("title", "secret"))
    with mw.open_table(uri).writer(compaction=None) as writer:
        writer.put([{"id": 2, "b": 20, "secret": "later"}])
    change(uri, rename_column("secret", "title"))
    table = mw.open_table(uri)
    assert [table.get(key)["title"] for key in (1, 2)] == [None, "later"]


# ---------------------------------------------------------------------------------------------- rows without a record


def foreign(place: Path) -> str:
    """A table with row 1 in a generation that pylance flushed, which names no base version."""
    uri = str(place / "t")
    key = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key, ("b", pa.int64()), ("secret", pa.string())])
    lance.write_dataset(pa.table({"id": [9], "b": [90]}, schema=schema.remove(2)), uri)
    change(uri, add_column("secret", pa.string()))
    at(uri).initialize_mem_wal()
    shard_id = "11111111-2222-4333-8444-555555555555"
    flush_by_pylance(uri, shard_id, pa.record_batch([[1], [10], ["ssn 123"]], schema=schema))
    return uri


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((drop_field("secret"), add_column("title", pa.string())), {"title": None}),
        ((rename_column("secret", "title"),), {"title": "ssn 123"}),
        ((drop_field("secret"), add_column("secret", pa.string())), {"secret": "ssn 123"}),
        (
            (drop_field("secret"), add_column("secret", pa.string()), rename_column("secret", "title")),
            {"title": "ssn 123"},
        ),
    ],
)
def test_unrecorded_rows_count_as_newest(tmp_path: Path, steps: tuple[Alter, ...], expected: dict[str, Any]) -> None:
    uri = foreign(tmp_path)
    change(uri, *steps)
    check_all_steps(uri, {"id": 1, "b": 10, **expected})


@pytest.mark.parametrize("keeps_drop", [True, False])
def test_rows_without_a_record_and_without_versions(tmp_path: Path, keeps_drop: bool) -> None:
    uri = foreign(tmp_path)
    change(uri, drop_field("secret"))
    kept = [at(uri).version] if keeps_drop else []
    change(uri, add_column("title", pa.string()))
    forget_versions(uri, *kept)
    null = {"id": 1, "b": 10, "title": None}
    if keeps_drop:
        check_all_steps(uri, null)
        return
    with pytest.warns(UserWarning, match="reused_ids"):
        check_reads(uri, null)
    assert mw.open_table(uri).compact().generations == 0


# ------------------------------------------------------------------------------------------------- records and requests


def test_entries_and_generations_name_their_base_version(tmp_path: Path) -> None:
    uri, writer = table_with_secret(tmp_path, "memtable")
    version = at(uri).version
    shard_id = mw.open_table(uri).shards()[0].shard_id
    assert mw.WalTailer(uri, shard_id).read_entry(1).footer.base == (version, 1)
    writer.close()
    generation = next(Path(uri).glob("_mem_wal/*/*_gen_1"))
    assert lance.dataset(str(generation)).config() == {
        "memwal.base_version": str(version),
        "memwal.base_fragments": "1",
    }
    assert lance.dataset(str(generation)).to_table().num_rows == 1


@pytest.mark.parametrize("tier", ["log", "sstable"])
def test_columns_in_every_old_file_cost_no_request(tmp_path: Path, tier: str) -> None:
    """Reads of rows that were written against an old base version and against the newest one cost the same."""
    calls = []
    for appended_before in (0, 3):
        uri = str(tmp_path / f"t{appended_before}")
        mw.create_table(uri, pa.table({"id": [9], "b": [90]}), primary_key="id", sharding=mw.Unsharded())
        append_base_rows(uri, appended_before)
        writer = mw.open_table(uri).writer(compaction=None)
        writer.put([{"id": 1, "b": 10}])
        if tier == "sstable":
            writer.flush()
        writer.abort()
        append_base_rows(uri, 3 - appended_before)
        CACHE.clear()
        table = mw.open_table(uri)
        before = calls_of_store(table)
        assert table.get(1) == {"id": 1, "b": 10}
        calls.append(calls_of_store(table) - before)
    assert calls[0] == calls[1]


def append_base_rows(uri: str, times: int) -> None:
    for _ in range(times):
        lance.write_dataset(pa.table({"id": [8], "b": [80]}), uri, mode="append")


def calls_of_store(table: mw.Table) -> int:
    return sum(item.count for item in table.location.metrics.snapshot().values())


SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int32())])


ADDED = {"text": ("s", pa.string()), "the same name": ("a", pa.string()), "nested": ("n", pa.list_(pa.int32()))}


def made(place: Path, key: str | None) -> tuple[mw.Table, mw.TableWriter]:
    """Row 1 in an SSTable, row 2 in a memtable and the log, nothing in the base table."""
    table = mw.create_table(str(place), SCHEMA, primary_key=key, sharding=mw.Unsharded())
    writer = table.writer(compaction=None)
    writer.put({"id": [1], "a": [7]})
    writer.flush()
    writer.put({"id": [2], "a": [8]})
    return table, writer


def shown(table: mw.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_table().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("added", ADDED)
def test_new_column_is_null_where_the_dropped_one_was(tmp_path: Path, key: str | None, added: str) -> None:
    table, writer = made(tmp_path / "t", key)
    table.dataset.drop_columns(["a"])
    lance.dataset(table.uri).add_columns(pa.schema([ADDED[added]]))
    assert [field.id() for field in table.dataset.lance_schema.fields()] == [0, 1]  # Lance gave the id out again
    name = table.schema.names[1]
    expected = [{"id": 1, name: None}, {"id": 2, name: None}]
    assert shown(table) == expected  # the writer's own memtable
    writer.abort()
    assert shown(mw.open_table(table.uri)) == expected  # the log
    if key is not None:
        assert [mw.open_table(table.uri).get(number) for number in (1, 2)] == expected
    if name != "n":
        assert table.scan(filter=f"{name} = 'x'").to_table().num_rows == 0
        assert table.scan(filter=f"{name} is null").to_table().num_rows == 2
    table.flush(idle_seconds=0)
    assert shown(mw.open_table(table.uri)) == expected
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table().to_pylist(), key=lambda row: row["id"]) == expected
    assert table.verify().ok


SHARD = "11111111-2222-4333-8444-555555555555"
KEY = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
PLACE = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
POSITIONAL = pa.schema(
    [KEY, ("a", pa.string()), ("b", pa.string()), ("c", pa.string()), ("place", PLACE), ("tags", pa.list_(pa.int32()))]
)


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "a": f"a{number}",
        "b": f"b{number}",
        "c": f"c{number}",
        "place": {"lat": number + 0.25, "lon": number + 0.5},
        "tags": [number] * number,
    }


def batch(schema: pa.Schema, *numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(number) for number in numbers], schema=schema)


def table_without(uri: str, *dropped: str) -> lance.LanceDataset:
    """A table whose base has row 1, and lost some columns."""
    lance.write_dataset(pa.Table.from_batches([batch(POSITIONAL, 1)]), uri)
    for name in dropped:
        lance.dataset(uri).drop_columns([name])
    lance.dataset(uri).initialize_mem_wal()
    return lance.dataset(uri)


def columns_of(uri: str) -> pa.Schema:
    schema = lance.dataset(uri).schema
    return pa.schema([field if field.name != "id" else KEY for field in schema])


def flush_old(uri: str, *numbers: int, with_transaction: bool = True) -> None:
    """Generations of one row each, as an old Lance writes them."""
    flush_by_pylance(uri, SHARD, *(batch(columns_of(uri), number) for number in numbers))
    number_by_position(uri, SHARD, with_transaction=with_transaction)


def without(dropped: tuple[str, ...], *numbers: int) -> list[dict[str, Any]]:
    return [{name: value for name, value in row(number).items() if name not in dropped} for number in numbers]


@pytest.mark.parametrize("with_transaction", [True, False])
@pytest.mark.parametrize("dropped", [("a",), ("b",), ("a", "c"), ("place",), ("place.lat",)])
def test_gapped_generation_is_read_by_name(tmp_path: Path, dropped: tuple[str, ...], with_transaction: bool) -> None:
    uri = str(tmp_path / "t")
    table_without(uri, *dropped)
    flush_old(uri, 2, 3, with_transaction=with_transaction)
    expected = without(dropped, 1, 2, 3)
    if dropped == ("place.lat",):
        expected = [{**r, "place": {"lon": r["place"]["lon"]}} for r in expected]
    table = mw.open_table(uri)
    assert shown(table) == expected
    assert [table.get(number) for number in (1, 2, 3)] == expected
    assert table.lookup([3]).to_pylist() == expected[2:]
    name = "c" if "c" not in dropped else "b"
    assert table.scan(filter=f"{name} = '{name}2'").to_table().to_pylist() == expected[1:2]
    assert table.verify().ok
    table.compact()
    assert sorted(lance.dataset(uri).to_table().to_pylist(), key=lambda found: found["id"]) == expected


def test_old_generation_whose_ids_were_those_columns_once_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(
        pa.Table.from_batches([batch(pa.schema([POSITIONAL.field(n) for n in ("id", "b", "c")]).set(0, KEY), 1)]), uri
    )
    lance.dataset(uri).drop_columns(["b", "c"])
    lance.dataset(uri).add_columns(pa.schema([("b", pa.string()), ("c", pa.string())]))
    lance.dataset(uri).initialize_mem_wal()
    flush_old(uri, 2)
    table = mw.open_table(uri)
    with pytest.raises(mw.UnsupportedFormatError, match="field ids"):
        table.scan().to_table()
    with pytest.raises(mw.UnsupportedFormatError, match="field ids"):
        table.get(2)
    with pytest.raises(mw.UnsupportedFormatError, match="field ids"):
        table.compact()
    report = table.verify()
    assert [problem.invariant for problem in report.problems] == ["V-12"]
    # Only a kept version shows the other reading.
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert shown(mw.open_table(uri)) == [{"id": 1, "b": None, "c": None}, {"id": 2, "b": "b2", "c": "c2"}]
    assert mw.open_table(uri).verify().ok


@pytest.mark.parametrize("old", [False, True], ids=["ids of its columns", "positions, on a gapped table"])
def test_generation_keeps_its_columns_after_a_rename(tmp_path: Path, old: bool) -> None:
    """Ids 0..n that a kept version shows are ids, where the names of the table are others by now."""
    uri = str(tmp_path / "t")
    table_without(uri, *(["a"] if old else []))
    if old:
        flush_old(uri, 2)
        lance.dataset(uri).alter_columns({"path": "b", "name": "renamed"})
    else:
        flush_by_pylance(uri, SHARD, batch(columns_of(uri), 2))
        lance.dataset(uri).alter_columns({"path": "b", "name": "renamed"})
        lance.dataset(uri).drop_columns(["a"])
    expected = [{"renamed" if k == "b" else k: v for k, v in r.items()} for r in without(("a",), 1, 2)]
    assert shown(mw.open_table(uri)) == [{name: r[name] for name in expected[0]} for r in expected]


def test_own_generation_with_ids_in_column_order_is_never_read_by_name(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(
        uri, POSITIONAL.set(0, pa.field("id", pa.int64())), primary_key="id", sharding=mw.Unsharded()
    )
    for number in (1, 2):
        with table.writer(compaction=None) as writer:
            writer.put([row(number)])
        if number == 1:
            table.compact()  # so that files of the base table hold every field id
    lance.dataset(uri).drop_columns(["tags"])
    lance.dataset(uri).add_columns(pa.schema([("tags", pa.list_(pa.int32()))]))
    assert lance.dataset(uri).lance_schema.fields()[-1].id() > 7
    assert shown(mw.open_table(uri)) == [{**row(1), "tags": None}, {**row(2), "tags": None}]
    assert mw.open_table(uri).verify().ok
