"""A column type is refused when a table is made or opened for writing, or its rows are the same in every tier."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.sstable.probe import check_columns, is_plain
from tests.kit.column_types import FLAT, NESTED, OTHERS, TAG, VERSIONS, go_the_whole_way, is_refused, schema_of

BLOB = {b"lance-encoding:blob": b"true"}


@pytest.mark.repro("writer-04")
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_every_type_that_is_accepted_are_the_same_in_every_tier(
    tmp_path: Path, version: str, keyed: bool
) -> None:
    kinds = [kind for kind in [*FLAT, *OTHERS, *NESTED] if not is_refused(kind, version)]
    go_the_whole_way(tmp_path, kinds, version, keyed=keyed)


REFUSED = [
    *(pa.list_(pa.struct([("a", pa.int32())]), 2), pa.list_(pa.string(), 2), pa.list_(pa.list_(pa.int32()), 2)),
    *(pa.struct([]), pa.list_(pa.struct([])), pa.decimal32(5, 2), pa.list_(TAG, 2), pa.month_day_nano_interval()),
    pa.list_(pa.list_(pa.float32(), 2), 2),  # Arrow gathers other values of a part of such a column
    *(pa.struct([("deep", pa.list_(pa.binary(), 2))]), pa.dictionary(pa.int8(), pa.decimal128(5, 2))),
]


@pytest.mark.repro("writer-04")
@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_that_cannot_make_the_whole_way_is_refused_by_name_before_anything_is_written(
    tmp_path: Path, kind: pa.DataType
) -> None:
    schema = pa.schema([("id", pa.int64()), ("fine", pa.list_(pa.int8())), ("bad", kind)])
    for key in ("id", None):
        with pytest.raises(mw.InvalidInputError, match="column 'bad'"):
            mw.create_table(str(tmp_path / "t"), schema, primary_key=key, sharding=mw.Unsharded())
    assert not list(tmp_path.iterdir())


def test_maps_are_refused_where_files_are_too_old_for_them(tmp_path: Path) -> None:
    schema = schema_of([pa.map_(pa.string(), pa.int32())], keyed=True)
    for version in VERSIONS:
        with_maps = version == "2.2"
        uri = str(tmp_path / version)
        lance.write_dataset(schema.empty_table().select(["id"]), uri, data_storage_version=version)
        lance.dataset(uri).add_columns(pa.schema([pa.field("c0", schema.field("c0").type)]))
        if with_maps:
            mw.enable(uri, sharding=mw.Unsharded())
        else:
            with pytest.raises(mw.InvalidInputError, match=rf"column 'c0'.*version {version}"):
                mw.enable(uri, sharding=mw.Unsharded())


@pytest.mark.prove
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [*FLAT, *OTHERS, *NESTED], ids=str)
def test_every_type_is_refused_by_name_or_makes_the_whole_way(
    tmp_path: Path, kind: pa.DataType, version: str, keyed: bool
) -> None:
    if is_refused(kind, version):
        with pytest.raises(mw.InvalidInputError, match="column 'c0'"):
            check_columns(schema_of([kind], keyed=keyed), storage_version=version)
    else:
        go_the_whole_way(tmp_path, [kind], version, keyed=keyed)


# ------------------------------------------------------------------------------------------------------- the shortcut


def test_types_that_are_not_tried_would_pass(tmp_path: Path) -> None:
    """One column that must be tried makes the library try all of them."""
    strict = [pa.field(f"s{i}", kind, nullable=False) for i, kind in enumerate(FLAT)]
    for keyed in (True, False):
        schema = schema_of(FLAT, keyed=keyed)
        assert all(map(is_plain, [*schema, *strict]))
        for version in VERSIONS:
            tried = pa.schema([*schema, *strict, pa.field("tried", pa.list_(pa.int8()))])
            check_columns(tried, storage_version=version, stable_row_ids=version == "2.1")


def test_only_types_that_are_known_to_work_are_not_tried() -> None:
    assert not any(
        is_plain(pa.field("c", kind)) for kind in [*OTHERS, *NESTED, pa.list_(pa.field("x", pa.float32(), False), 2)]
    )
    assert not is_plain(pa.field("c", pa.large_binary(), metadata=BLOB))
    assert is_plain(pa.field("c", pa.large_binary(), metadata={b"unit": b"metre"}))


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prefixes of the temporary directories that were asked for."""
    asked: list[str] = []
    make = tempfile.TemporaryDirectory

    def counted(*args: Any, **options: Any) -> Any:
        asked.append(str(options.get("prefix")))
        return make(*args, **options)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", counted)
    return asked


def test_columns_are_tried_once_per_process_and_plain_ones_never(tmp_path: Path, directories: list[str]) -> None:
    plain = mw.create_table(str(tmp_path / "plain"), schema_of(FLAT, keyed=True), sharding=mw.Unsharded())
    plain.writer().close()
    assert directories == []
    schema = schema_of([pa.struct([("only_here", TAG)])], keyed=True)
    table = mw.create_table(str(tmp_path / "a"), schema, sharding=mw.Unsharded())
    tried = len(directories)
    assert 1 <= tried <= 2  # one of them asks Lance for the version of new files
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "c0": {"only_here": "x"}}])
    mw.create_table(str(tmp_path / "b"), schema, sharding=mw.Unsharded()).shard_writer().close()
    assert len(directories) == tried


def test_without_a_temporary_directory_plain_columns_work_and_others_say_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    mw.create_table(str(tmp_path / "plain"), schema_of(FLAT, keyed=True), sharding=mw.Unsharded())
    schema = schema_of([pa.struct([("not_tried_yet", TAG)])], keyed=True)
    with pytest.raises(mw.UnavailableError, match="TMPDIR"):
        mw.create_table(str(tmp_path / "t"), schema, sharding=mw.Unsharded())


# ------------------------------------------------------------------------------------------------------- other people's


def odd_table(uri: str) -> None:
    """A table that pylance made and initialised, with a column that we do not write."""
    schema = schema_of([pa.int32()], keyed=True)
    lance.write_dataset(
        pa.table([[1, 2], pa.array([5, 6], pa.int32())], schema=schema), uri, data_storage_version="2.1"
    )
    lance.dataset(uri).add_columns(pa.schema([pa.field("odd", pa.map_(pa.string(), pa.int32()))]))
    lance.dataset(uri).initialize_mem_wal(unsharded=True)


def test_a_table_of_pylance_with_a_column_that_we_do_not_write_can_be_read(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    odd_table(uri)
    table = mw.open_table(uri)
    assert table.scan().to_table().to_pylist() == [{"id": 1, "c0": 5, "odd": None}, {"id": 2, "c0": 6, "odd": None}]
    assert table.get(2, columns=["c0"]) == {"c0": 6}
    assert table.count_rows() == 2
    assert table.verify().ok


def test_a_table_of_pylance_with_a_column_that_we_do_not_write_gives_no_writer(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    odd_table(uri)
    before = lance.dataset(uri).version
    shard = "11111111-2222-4333-8444-555555555555"
    for opening in (
        lambda: mw.open_table(uri).writer(),
        lambda: mw.open_table(uri).shard_writer(),
        lambda: mw.ShardWriter.open(uri, shard_id=shard),
        lambda: mw.WalAppender.open(uri, shard),
    ):
        with pytest.raises(mw.InvalidInputError, match=r"column 'odd'.*map"):
            opening()
    assert mw.open_table(uri).shards() == []
    assert lance.dataset(uri).version == before, "a refused table is left as it is"


@pytest.mark.repro("reads-05", "writer-05")
def test_a_column_that_does_not_come_back_is_refused_at_create_and_enable(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("odd", pa.list_(pa.struct([("a", pa.int8())]), 2))]
    )
    with pytest.raises(mw.InvalidInputError, match="column 'odd'"):
        mw.create_table(str(tmp_path / "made"), schema, primary_key="id", sharding=mw.Unsharded())
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t", data_storage_version="2.1")
    lance.dataset(tmp_path / "t").add_columns(pa.schema([schema.field("odd")]))
    with pytest.raises(mw.InvalidInputError, match="column 'odd'"):
        mw.enable(str(tmp_path / "t"), sharding=mw.Unsharded())


# ------------------------------------------------------------------------------------------------------- added later


def test_a_column_that_is_added_later_is_checked_before_writers_take_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, schema_of([pa.int32()], keyed=True), sharding=mw.Unsharded())
    bad = pa.list_(pa.string(), 2)
    with table.writer(compaction=None) as routed:
        lance.dataset(uri).add_columns(pa.schema([pa.field("later", bad)]))
        with pytest.raises(mw.InvalidInputError, match="column 'later'"):
            routed.evolve_schema()
    with pytest.raises(mw.InvalidInputError, match="column 'later'"):
        table.shard_writer()
    lance.dataset(uri).drop_columns(["later"])
    with table.shard_writer() as writer:
        writer.put([{"id": 1, "c0": 1}])
        lance.dataset(uri).add_columns(pa.schema([pa.field("later", bad)]))
        with pytest.raises(mw.InvalidInputError, match="column 'later'"):
            writer.evolve_schema()
        writer.put([{"id": 2, "c0": 2}])
    assert sorted(row["id"] for row in table.scan(columns=["id"]).to_table().to_pylist()) == [1, 2]


def test_an_appender_without_a_base_table_checks_the_columns_of_its_first_rows(tmp_path: Path) -> None:
    appender = mw.WalAppender.open(str(tmp_path), "11111111-2222-4333-8444-555555555555")
    with pytest.raises(mw.InvalidInputError, match="column 'c0'"):
        appender.append(pa.table([[1], pa.array([["a", "b"]], pa.list_(pa.string(), 2))], names=["id", "c0"]))
    assert appender.append(pa.table({"id": [1], "c0": [["a", "b"]]})) > 0
