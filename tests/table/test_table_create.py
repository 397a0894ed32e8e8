"""Making tables, enabling existing ones, opening them: what is stored, and what is refused before anything is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import polars
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.create import Choices, install
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import resolve
from tests.kit.tables import FAST, create, files_below, has_entry, keyed, rows_of

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})


def test_a_new_table_has_its_key_its_rows_and_a_memwal_index(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, ROWS, primary_key="id", sharding=mw.Bucket("id", 4))
    assert table.primary_key == ["id"]
    assert table.schema.names == ["id", "v"]
    assert not table.schema.field("id").nullable
    assert table.sharding == mw.Bucket("id", 4)
    details = table.details()
    assert (details.num_shards, details.maintain_all_indexes, details.compacted) == (4, True, {})
    assert details.index_catchup == {}
    assert table.shards() == []
    assert rows_of(table.scan()) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert lance.dataset(uri).mem_wal_index_details()["num_shards"] == 4
    assert uri in repr(table)
    assert mw.open_table(uri).sharding == table.sharding


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (KEYED, 0),
        (ROWS, 2),
        (ROWS.to_batches(), 2),
        (ROWS.to_batches()[0], 2),
        (ROWS.to_reader(), 2),
        (ROWS.to_pylist(), 2),
        ({"id": [1, 2], "v": ["a", "b"]}, 2),
        (ROWS.to_pandas(), 2),
        (polars.from_arrow(ROWS), 2),
        (KEYED.empty_table(), 0),
        (pa.table([pa.chunked_array([], pa.int64()), pa.chunked_array([], pa.string())], names=["id", "v"]), 0),
        (pa.RecordBatchReader.from_batches(KEYED, []), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_table_is_made_from_a_schema_or_from_any_data(tmp_path: Path, data: Any, rows: int) -> None:
    table = mw.create_table(str(tmp_path / "t"), data, primary_key="id")
    assert table.schema.names == ["id", "v"]
    assert table.count_rows() == rows


def test_a_composite_key_keeps_the_order_in_which_it_was_given(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string()), pa.field("v", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=["b", "a"])
    assert table.primary_key == ["b", "a"]
    with table.writer() as writer:
        writer.put([{"a": 1, "b": "x", "v": 5}])
    assert table.get(("x", 1)) == {"a": 1, "b": "x", "v": 5}
    assert table.get({"a": 1, "b": "x"}) == {"a": 1, "b": "x", "v": 5}


def test_marks_in_a_schema_make_the_key_too(tmp_path: Path) -> None:
    marked = KEYED.set(0, KEYED.field("id").with_metadata({"lance-schema:unenforced-primary-key": "true"}))
    assert mw.create_table(str(tmp_path / "t"), marked).primary_key == ["id"]


def test_a_table_lives_in_memory_for_tests_and_try_outs() -> None:
    table = create("memory://create/t")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": 1, "s": "a"}])
        assert mw.open_table("memory://create/t").get(1) == {"id": 1, "v": 1, "s": "a"}


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"primary_key": "nope"}, "nope"),
        ({"primary_key": []}, "at least one"),
        ({"primary_key": 5}, "name of a column"),
        ({"primary_key": ["id", "id"]}, "each once"),
        ({"primary_key": "x"}, "type double"),
        ({"primary_key": "id", "sharding": mw.Bucket("nope", 4)}, "nope"),
        ({"primary_key": "id", "sharding": mw.Bucket("v", 4)}, "not part of the primary key"),
        ({"primary_key": "id", "sharding": mw.Identity("x")}, "integers, booleans or strings"),
        ({"primary_key": "id", "sharding": "bucket"}, "sharding must be"),
        ({"primary_key": "id", "maintained_indexes": "some"}, "maintained_indexes"),
        ({"primary_key": "id", "maintained_indexes": ["v_idx"]}, "no index 'v_idx'"),
        ({"primary_key": "id", "writer_defaults": {"max_memtable_rows": 0}}, "max_memtable_rows"),
        ({"primary_key": "id", "writer_defaults": {"shard_id": "x"}}, "shard_id"),
        ({"primary_key": "id", "writer_defaults": {"shard_spec_id": 1}}, "shard_spec_id"),
        ({"primary_key": "id", "data_or_schema": pa.table({"id": [1, None]})}, "does not fit the primary key"),
        ({"data_or_schema": []}, "give a schema"),
    ],
)
def test_a_table_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, options: Any, reason: str) -> None:
    options = {"data_or_schema": KEYED.append(pa.field("x", pa.float64())), **options}
    with pytest.raises(mw.InvalidInputError, match=reason):
        mw.create_table(str(tmp_path / "t"), **options)
    assert files_below(str(tmp_path)) == {}


@pytest.mark.parametrize("name", ["_tombstone", "_rowid", "_rowaddr", "_rowoffset", "a.b", "back`tick", ""])
def test_a_column_name_that_lance_does_not_store_or_read_is_refused(tmp_path: Path, name: str) -> None:
    schema = KEYED.append(pa.field(name, pa.int64()))
    with pytest.raises(mw.InvalidInputError, match=f"{name!r}.*rename that column"):
        mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    with pytest.raises(mw.InvalidInputError, match=f"{name!r}"):
        mw.ShardWriter.open(str(tmp_path / "t"), schema)
    assert files_below(str(tmp_path)) == {}


@pytest.mark.parametrize("primary_key", ["id", None])
@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal32(5, 1),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int32())]),
        pa.list_(pa.int8(), 0),
        pa.list_(pa.dictionary(pa.int32(), pa.string()), 2),
        pa.struct([("a", pa.list_(pa.list_(pa.dictionary(pa.int32(), pa.string()), 2)))]),
    ],
    ids=str,
)
def test_type_that_lance_cannot_store_is_refused(tmp_path: Path, kind: pa.DataType, primary_key: str | None) -> None:
    schema = KEYED.append(pa.field("x", kind))
    with pytest.raises(mw.InvalidInputError, match="column 'x'"):
        mw.create_table(str(tmp_path / "t"), schema, primary_key=primary_key)
    assert files_below(str(tmp_path)) == {}


def test_a_table_that_is_there_is_not_made_or_enabled_again(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    create(uri)
    before = files_below(uri)
    with pytest.raises(mw.InvalidInputError, match="exist_ok"):
        create(uri)
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.enable(uri)
    assert files_below(uri) == before


def test_exist_ok_opens_only_a_table_with_these_columns_and_key_and_writes_no_data(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    mw.create_table(uri, ROWS, primary_key="id", sharding=mw.Bucket("id", 3))
    again = mw.create_table(uri, ROWS, primary_key="id", exist_ok=True)
    assert again.count_rows() == 2
    assert again.sharding == mw.Bucket("id", 3)
    assert mw.create_table(uri, KEYED, exist_ok=True).primary_key == ["id"]
    with pytest.raises(mw.InvalidInputError, match="another primary key"):
        mw.create_table(uri, ROWS, primary_key="v", exist_ok=True)
    with pytest.raises(mw.InvalidInputError, match="other columns"):
        mw.create_table(uri, KEYED.append(pa.field("w", pa.int8())), exist_ok=True)


def test_exist_ok_enables_a_plain_lance_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri)
    assert mw.create_table(uri, ROWS, sharding=mw.Unsharded(), exist_ok=True).sharding == mw.Unsharded()


@pytest.mark.parametrize("call", [mw.open_table, mw.enable])
def test_a_table_that_is_not_there_is_said_to_be_missing(tmp_path: Path, call: Callable[[str], mw.Table]) -> None:
    with pytest.raises(mw.InvalidInputError, match="there is no table"):
        call(str(tmp_path / "missing"))
    assert files_below(str(tmp_path)) == {}


def test_a_plain_lance_table_is_opened_only_after_it_was_enabled(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri)
    with pytest.raises(mw.InvalidInputError, match=r"memwal\.enable"):
        mw.open_table(uri)
    table = mw.enable(lance.dataset(uri))
    assert table.count_rows() == 2
    assert mw.open_table(uri).sharding == mw.Unsharded()


# ------------------------------------------------------------------------------------------------- stored settings


def test_stored_defaults_are_where_every_writer_starts_and_foreign_keys_survive(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    stored = {"max_memtable_rows": 7, "durable_write": False, "fsync": False, "owner": "team-a", "ttl_days": 30}
    table = mw.create_table(uri, KEYED, primary_key="id", sharding=mw.Unsharded(), writer_defaults=stored)
    defaults = mw.open_table(uri).details().writer_config_defaults
    assert (defaults["owner"], defaults["ttl_days"], defaults["max_memtable_rows"]) == ("team-a", "30", "7")
    assert not {"shard_id", "shard_spec_id"} & defaults.keys()
    assert lance.dataset(uri).mem_wal_index_details()["writer_config_defaults"] == defaults
    with table.shard_writer() as writer:
        assert (writer.config.max_memtable_rows, writer.config.durable_write) == (7, False)
    with table.shard_writer(max_memtable_rows=9) as writer:
        assert (writer.config.max_memtable_rows, writer.config.durable_write) == (9, False)
    with table.shard_writer(config=mw.WriterConfig(fsync=False)) as writer:
        assert (writer.config.max_memtable_rows, writer.config.durable_write) == (100_000, True)
    with table.writer() as routed:
        routed.put([{"id": 1, "v": "a"}])
        assert [shard.config.max_memtable_rows for shard in routed.shard_writers.values()] == [7]


CUSTOM = {"custom_knob": "x", "ratio": 0.5, "a_text": "10", "empty": ""}


@pytest.mark.parametrize("enabled", [False, True], ids=["create_table", "enable"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (mw.WriterConfig(max_memtable_rows=7, fsync=False, stats_log_interval_ms=None).to_defaults(), (7, None)),
        ({"max_memtable_rows": "8", "fsync": "false", "stats_log_interval_ms": "0"}, (8, None)),
        ({"max_memtable_rows": "9", "fsync": False, "stats_log_interval_ms": 40}, (9, 40)),
    ],
)
def test_defaults_are_texts_or_values_beside_keys_of_the_user(
    tmp_path: Path, given: dict[str, Any], expected: tuple[int, int | None], enabled: bool
) -> None:
    uri, defaults = str(tmp_path / "t"), {**given, **CUSTOM}
    if enabled:
        lance.write_dataset(KEYED.empty_table(), uri)
        table = mw.enable(uri, primary_key="id", writer_defaults=defaults)
    else:
        table = mw.create_table(uri, KEYED, primary_key="id", writer_defaults=defaults)
    stored = mw.open_table(uri).details().writer_config_defaults
    assert {name: stored[name] for name in CUSTOM} == {name: str(value) for name, value in CUSTOM.items()}
    assert lance.dataset(uri).mem_wal_index_details()["writer_config_defaults"] == stored
    with table.shard_writer() as writer:
        assert (writer.config.max_memtable_rows, writer.config.stats_log_interval_ms) == expected
        assert not writer.config.fsync
        writer.put([{"id": 1, "v": "ours"}])
    with lance.dataset(uri).mem_wal_writer(writer.shard_id) as peer:
        peer.put(pa.table({"id": [2], "v": ["theirs"]}, schema=KEYED))
    assert table.count_rows() == 2


def test_defaults_copied_from_another_table_leave_its_merge_and_id_there(tmp_path: Path) -> None:
    first = mw.create_table(str(tmp_path / "a"), KEYED, primary_key="id", merge=mw.FirstRow())
    copied = first.details().writer_config_defaults
    second = mw.create_table(str(tmp_path / "b"), KEYED, primary_key="id", writer_defaults={**copied, **CUSTOM})
    assert second.merge is None
    own = second.details().writer_config_defaults
    assert {name for name in copied if own.get(name) != copied[name]} == {"memwal.merge", "memwal.table_id"}


@pytest.mark.parametrize(
    ("named", "every", "names"),
    [("all", True, ("v_idx",)), (None, False, ()), ([], False, ()), (["v_idx"], False, ("v_idx",))],
)
def test_maintained_indexes_all_none_named(tmp_path: Path, named: Any, every: bool, names: tuple[str, ...]) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri).create_scalar_index("v", "BTREE", name="v_idx")
    details = mw.enable(uri, maintained_indexes=named).details()
    assert (details.maintain_all_indexes, details.maintained_indexes) == (every, names)


# ------------------------------------------------------------------------------------------------------------- races


def test_of_two_concurrent_enables_one_wins(tmp_path: Path) -> None:
    """The second one read the table before the first one committed."""
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri)
    late = BaseTable.open(resolve(uri))
    assert late is not None
    mw.enable(uri, sharding=mw.Bucket("id", 2))
    with pytest.raises(mw.ConflictError) as raised:
        install(late, Choices(sharding=mw.Bucket("id", 9)))
    assert raised.value.retryable
    assert mw.open_table(uri).sharding == mw.Bucket("id", 2)


def test_many_threads_enable_a_table_and_exactly_one_wins(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri)
    outcomes: dict[int, Any] = {}

    def race(buckets: int) -> None:
        try:
            outcomes[buckets] = mw.enable(uri, sharding=mw.Bucket("id", buckets)).sharding
        except (mw.ConflictError, mw.InvalidInputError) as error:
            outcomes[buckets] = error

    threads = [SYSTEM_CLOCK.spawn(lambda n=n: race(n), f"enable-{n}") for n in range(1, 7)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    won = [buckets for buckets, outcome in outcomes.items() if not isinstance(outcome, Exception)]
    assert len(won) == 1
    assert outcomes[won[0]] == mw.open_table(uri).sharding == mw.Bucket("id", won[0])


def test_of_concurrent_creations_one_wins_and_keeps_its_rows(tmp_path: Path) -> None:
    for attempt in range(8):
        _race_to_create(str(tmp_path / str(attempt)))


def _race_to_create(uri: str) -> None:
    outcomes: list[Any] = []
    together = threading.Barrier(4)

    def race(n: int) -> None:
        together.wait()
        try:
            outcomes.append(mw.create_table(uri, pa.table({"id": [n]}), primary_key="id"))
        except (mw.ConflictError, mw.InvalidInputError) as error:
            outcomes.append(error)

    threads = [SYSTEM_CLOCK.spawn(lambda n=n: race(n), f"create-{n}") for n in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    won = [outcome for outcome in outcomes if isinstance(outcome, mw.Table)]
    assert len(won) == 1
    assert len(outcomes) == 4
    assert won[0].dataset.version == 2
    assert mw.open_table(uri).count_rows() == 1


SCHEMA_CHANGES: dict[str, Callable[[Any], Any]] = {
    "the sharding column is dropped": lambda base: base.drop_columns(["region"]),
    "the key is dropped": lambda base: base.drop_columns(["id"]),
    "the table is overwritten": lambda base: lance.write_dataset(pa.table({"z": [1]}), base.uri, mode="overwrite"),
}


def _two_columns(uri: str) -> BaseTable:
    key = {"lance-schema:unenforced-primary-key": "true"}
    fields = [
        pa.field(name, kind, nullable=False, metadata=key)
        for name, kind in (("id", pa.int64()), ("region", pa.string()))
    ]
    lance.write_dataset(
        pa.table({"id": [1], "region": ["eu"], "v": ["a"]}, schema=pa.schema([*fields, ("v", pa.string())])), uri
    )
    base = BaseTable.open(resolve(uri))
    assert base is not None
    return base


@pytest.mark.parametrize("change", SCHEMA_CHANGES)
def test_an_enable_that_meets_a_change_which_it_does_not_fit_is_taken_back(tmp_path: Path, change: str) -> None:
    uri = str(tmp_path / "t")
    checked = _two_columns(uri)
    SCHEMA_CHANGES[change](lance.dataset(uri))
    with pytest.raises((mw.ConflictError, mw.InvalidInputError)):
        install(checked, Choices(sharding=mw.Bucket("region", 4)))
    assert not has_entry(uri)


def _append(base: Any) -> None:
    lance.write_dataset(base.to_table(), base.uri, mode="append")


HARMLESS: dict[str, Callable[[Any], Any]] = {
    "rows are appended": _append,
    "rows are deleted": lambda base: base.delete("id = 1"),
    "another column is renamed": lambda base: base.alter_columns({"path": "v", "name": "w"}),
    "another column is dropped": lambda base: base.drop_columns(["v"]),
    "a column is added": lambda base: base.add_columns(pa.schema([("n", pa.int64())])),
    "the sharding column is renamed": lambda base: base.alter_columns({"path": "region", "name": "area"}),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_an_enable_survives_a_change_that_it_fits(tmp_path: Path, change: str) -> None:
    """What was checked still holds in the version that came out: nothing of the other change is lost."""
    uri = str(tmp_path / "t")
    checked = _two_columns(uri)
    HARMLESS[change](lance.dataset(uri))
    columns, rows = lance.dataset(uri).schema.names, lance.dataset(uri).count_rows()
    if change == "the sharding column is renamed":
        with pytest.raises(mw.ConflictError):
            install(checked, Choices(sharding=mw.Bucket("region", 4)))
        return
    install(checked, Choices(sharding=mw.Bucket("region", 4)))
    table = mw.open_table(uri)
    assert (table.sharding, table.schema.names, table.count_rows()) == (mw.Bucket("region", 4), columns, rows)


# ----------------------------------------------------------------------------------------------------------- lost entry


def _overwrite(uri: str) -> None:
    lance.write_dataset(pa.table({"id": [9], "v": [9], "s": ["z"]}, schema=keyed()), uri, mode="overwrite")


def _drop(uri: str) -> None:
    lance.dataset(uri).drop_index("__lance_mem_wal")


@pytest.mark.parametrize("lose", [_overwrite, _drop])
def test_a_table_that_lost_its_entry_says_so_and_gives_no_writer(tmp_path: Path, lose: Callable[[str], None]) -> None:
    uri = str(tmp_path / "t")
    table = create(uri)
    lose(uri)
    before = files_below(uri)
    calls: list[Callable[[], Any]] = [
        lambda: mw.open_table(uri),
        table.details,
        table.writer,
        table.shard_writer,
        lambda: mw.ShardWriter.open(uri),
        lambda: table.scan().to_table(),
        lambda: table.get(1),
        lambda: table.lookup([1, 2]),
        table.count_rows,
    ]
    for call in calls:
        with pytest.raises(mw.InvalidInputError, match="no MemWAL index"):
            call()
    assert files_below(uri) == before


def _put_for_seconds(writer: mw.TableWriter, seconds: float) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + seconds
    while SYSTEM_CLOCK.monotonic() < deadline:
        writer.put([{"id": 2, "v": 1, "s": "a"}])
        SYSTEM_CLOCK.sleep(0.05)


@pytest.mark.parametrize("lose", [_overwrite, _drop])
def test_a_live_writer_stops_soon_after_its_table_lost_the_entry(tmp_path: Path, lose: Callable[[str], None]) -> None:
    uri = str(tmp_path / "t")
    table = create(uri)
    writer = table.writer()
    writer.put([{"id": 1, "v": 1, "s": "a"}])
    lose(uri)
    for call in (table.count_rows, writer.count_rows, lambda: writer.get(1), table.writer):
        with pytest.raises(mw.InvalidInputError, match="no MemWAL index"):
            call()
    with pytest.raises(mw.TableReplacedError, match="no MemWAL index"):
        _put_for_seconds(writer, 30)
    for call in (lambda: writer.delete([1]), lambda: writer.put_nowait([{"id": 3, "v": 1, "s": "a"}])):
        with pytest.raises(mw.TableReplacedError, match="no MemWAL index"):
            call()
    writer.abort()


@pytest.mark.parametrize("end", ["close", "abort"], ids=["SSTable", "tail"])
def test_shards_of_an_earlier_life_are_adopted_only_when_asked(tmp_path: Path, end: str) -> None:
    uri = str(tmp_path / "t")
    writer = create(uri).writer()
    writer.put([{"id": 1, "v": 1, "s": "a"}])
    getattr(writer, end)()
    _drop(uri)
    with pytest.raises(mw.InvalidInputError, match="adopt_shards"):
        mw.enable(uri, sharding=mw.Unsharded())
    with pytest.raises(mw.InvalidInputError, match="adopt_shards"):
        create(uri, exist_ok=True)
    assert not has_entry(uri)
    adopted = mw.enable(uri, sharding=mw.Unsharded(), adopt_shards=True)
    assert rows_of(adopted.scan()) == [{"id": 1, "v": 1, "s": "a"}]


def test_a_shard_that_came_before_its_base_table_is_adopted_only_when_asked(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = keyed().set(0, keyed().field("id").with_metadata(key))
    with mw.ShardWriter.open(uri, schema, **FAST) as writer:
        writer.put([{"id": 1, "v": 1, "s": "a"}])
    with pytest.raises(mw.InvalidInputError, match="adopt_shards"):
        mw.create_table(uri, schema)
    lance.write_dataset(schema.empty_table(), uri)
    table = mw.enable(uri, adopt_shards=True)
    assert rows_of(table.scan()) == [{"id": 1, "v": 1, "s": "a"}]


def test_a_table_follows_new_base_versions_by_itself(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = create(uri)
    assert table.count_rows() == 0
    lance.write_dataset(pa.table({"id": [5], "v": [1], "s": ["a"]}, schema=table.schema), uri, mode="append")
    assert table.count_rows() == 1
    assert table.get(5) == {"id": 5, "v": 1, "s": "a"}
    assert table.dataset.count_rows() == 1
    lance.dataset(uri).delete("id = 5")
    assert table.get(5) is None
    assert os.path.realpath(uri) == table.uri


def test_create_table_widens_dictionary_indices_and_puts_cast_them(tmp_path: Path) -> None:
    small, wide = pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("kind", small), ("inner", pa.struct([("k", small)]))]
    )
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", sharding=mw.Unsharded())
    assert table.schema.field("kind").type == wide
    assert table.schema.field("inner").type == pa.struct([("k", wide)])
    mw.create_table(str(tmp_path / "t"), schema, primary_key="id", exist_ok=True)
    rows = [{"id": n, "kind": f"word {n}", "inner": {"k": f"other {n}"}} for n in range(300)]
    with table.writer(compaction=None) as writer:
        for start in range(0, 300, 100):
            writer.put(pa.Table.from_pylist(rows[start : start + 100], schema=schema))
    table.compact()
    assert sorted(table.scan().to_table().to_pylist(), key=lambda row: row["id"]) == rows
