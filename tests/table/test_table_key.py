"""The primary key of a table that exists: set by enable, checked against its rows, and taken back without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.create import Choices, enable_base
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import resolve
from tests.kit.tables import rows_of

ROWS = pa.table({"x": [0.5, 1.5, 2.5], "id": pa.array([1, 2, 3]), "s": ["a", "b", "c"]})


def _plain(uri: str, data: pa.Table = ROWS) -> lance.LanceDataset:
    """A plain Lance table of several files, whose field ids have a gap."""
    dataset = lance.write_dataset(data.add_column(0, "gone", pa.nulls(len(data), pa.int8())), uri, max_rows_per_file=2)
    dataset.drop_columns(["gone"])
    dataset.update_field_metadata({"s": {"mine": "kept"}})
    return lance.dataset(uri)


def _ids(dataset: lance.LanceDataset) -> list[int]:
    return [int(field.id()) for field in dataset.lance_schema.fields()]


@pytest.mark.parametrize("key", ["id", ["s", "id"], ["id"]])
def test_enable_sets_the_key_of_a_plain_table(tmp_path: Path, key: Any) -> None:
    uri = str(tmp_path / "t")
    plain = _plain(uri)
    table = mw.enable(uri, primary_key=key, writer_defaults={"fsync": False})
    names = [key] if isinstance(key, str) else key
    assert table.primary_key == mw.open_table(uri).primary_key == names
    assert [field.name for field in table.schema if not field.nullable] == [n for n in ("id", "s") if n in names]
    assert _ids(table.dataset) == _ids(plain)
    with table.writer() as writer:
        writer.put([{"x": 9.0, "id": 2, "s": "b"}])
        writer.delete([{"id": 3, "s": "c"}])
    table.compact()
    assert rows_of(table.dataset.to_table(), "id") == [
        {"x": 0.5, "id": 1, "s": "a"},
        {"x": 9.0, "id": 2, "s": "b"},
    ]


TWICE = pa.table({"id": [1, 2, 3, 2, 1, 5], "s": ["a", "b", "c", "b", "x", None]})


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("id", r"2 values of the primary key \(id\) are there more than once: 1, 2;|more than once: 2, 1;"),
        (["id", "s"], r"column 's' holds nulls, beside 5"),
        ("s", "column 's' holds nulls"),
        ("absent", "not in the schema"),
        ([], "at least one"),
        (["id", "id"], "each once"),
        (7, "name of a column"),
        ([7], "must be a text"),
    ],
)
def test_a_key_that_the_rows_do_not_have_is_refused_without_a_trace(tmp_path: Path, key: Any, reason: str) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(TWICE, uri, max_rows_per_file=2)
    with pytest.raises(mw.InvalidInputError, match=reason):
        mw.enable(uri, primary_key=key)
    assert lance.dataset(uri).version == 1
    if key not in ("absent", [], 7):
        with pytest.raises(mw.InvalidInputError):
            mw.create_table(str(tmp_path / "c"), TWICE, primary_key=key)
        assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *((kind, [1, 2]) for kind in (pa.int8(), pa.int32(), pa.uint64())),
        (pa.uint64(), [2**64 - 1, 2**63]),
        (pa.bool_(), [True, False]),
        *((kind, ["one", "two"]) for kind in (pa.string(), pa.large_string())),
        *((kind, [b"one", b"two"]) for kind in (pa.binary(), pa.large_binary())),
    ],
)
def test_a_repeated_key_of_every_type_is_found(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    once = pa.table({"k": pa.array(values, kind), "n": [1, 2]})
    assert mw.create_table(str(tmp_path / "once"), once, primary_key="k").count_rows() == 2
    twice = pa.concat_tables([once, once.slice(1)])
    with pytest.raises(mw.InvalidInputError, match="1 values of the primary key"):
        mw.create_table(str(tmp_path / "twice"), twice, primary_key="k")


def test_a_key_that_lance_marked_is_checked_too_and_another_one_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
            ("s", pa.string()),
        ]
    )
    lance.write_dataset(pa.table({"id": [1, 2], "s": ["a", "b"]}, schema=schema), uri)
    with pytest.raises(mw.InvalidInputError, match=r"is \(id\)"):
        mw.enable(uri, primary_key="s")
    lance.write_dataset(pa.table({"id": [2], "s": ["c"]}, schema=schema), uri, mode="append")
    for key in (None, "id"):
        with pytest.raises(mw.InvalidInputError, match="more than once: 2"):
            mw.enable(uri, primary_key=key)
    assert lance.dataset(uri).version == 2
    lance.dataset(uri).delete("s = 'c'")
    assert mw.enable(uri, primary_key="id").primary_key == ["id"]
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.enable(uri, primary_key="id")


@pytest.mark.parametrize("appended", ["a repeated key", "a new key"])
def test_rows_that_come_while_the_key_is_set_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appended: str
) -> None:
    """Lance lets a change of metadata pass over appends: the version that results is what counts."""
    uri = str(tmp_path / "t")
    before = _plain(uri)
    number = 2 if appended == "a repeated key" else 9
    mark_metadata = lance.LanceDataset.update_field_metadata

    def append_first(self: lance.LanceDataset, *args: Any, **kwargs: Any) -> Any:
        if any("primary-key" in name for marks in args[0].values() for name in marks):
            more = pa.table({"x": [9.5], "id": [number], "s": ["z"]}).cast(lance.dataset(uri).schema)
            lance.write_dataset(more, uri, mode="append")
        return mark_metadata(self, *args, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "update_field_metadata", append_first)
    base = BaseTable.open(resolve(uri))
    assert base is not None
    if number == 9:
        assert enable_base(base, "id", Choices()).primary_key == ("id",)
        return
    with pytest.raises(mw.InvalidInputError, match="more than once: 2"):
        enable_base(base, "id", Choices())
    left = lance.dataset(uri)
    assert left.schema.equals(before.schema, check_metadata=True)
    assert _ids(left) == _ids(before)
    assert sorted(left.to_table()["id"].to_pylist()) == [1, 2, 2, 3]
    with pytest.raises(mw.InvalidInputError, match=r"memwal\.enable"):
        mw.open_table(uri)


def test_an_enable_that_fails_half_way_leaves_the_columns_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t")
    before = _plain(uri)
    with pytest.raises(mw.InvalidInputError, match="no index"):
        mw.enable(uri, primary_key="id", maintained_indexes=["absent"])
    with pytest.raises(mw.InvalidInputError, match="not part of the primary key"):
        mw.enable(uri, primary_key="id", sharding=mw.Bucket("s", 2))
    assert lance.dataset(uri).version == before.version

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(lance.LanceDataset, "update_field_metadata", fail)
    with pytest.raises(mw.UnavailableError, match="the store is away"):
        mw.enable(uri, primary_key="id")
    assert lance.dataset(uri).version > before.version
    assert lance.dataset(uri).schema.equals(before.schema, check_metadata=True)
    assert _ids(lance.dataset(uri)) == _ids(before)


HOSTILE = [
    "plain",
    "' OR '1'='1",
    "plain' OR k IS NOT NULL --",
    "\\' OR true --",
    '" OR true --',
    "`k` = `k`",
    "x') OR (true",
    "%",
    "a\nb\0c",
    "NULL",
]


@pytest.mark.parametrize("name", ["k", "k' OR true --", 'k" OR "'])
def test_a_key_that_looks_like_a_filter_is_a_value_in_every_tier(tmp_path: Path, name: str) -> None:
    schema = pa.schema([pa.field(name, pa.string(), nullable=False), ("v", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=name, writer_defaults={"fsync": False})
    absent = ["'", "absent' OR '1'='1", "\\", "''"]

    def check(gone: int) -> None:
        for number, key in enumerate(HOSTILE):
            expected = None if number < gone else {name: key, "v": number}
            assert table.get(key) == expected
            assert table.lookup([key]).to_pylist() == ([] if expected is None else [expected])
        assert [table.get(key) for key in absent] == [None] * len(absent)
        assert sorted(table.scan().to_table()["v"].to_pylist()) == list(range(gone, len(HOSTILE)))

    with table.writer(compaction=None) as writer:
        writer.put([{name: key, "v": number} for number, key in enumerate(HOSTILE)])
        check(0)
    table.compact(flush=True)
    check(0)
    for gone in (1, 2):
        with table.writer(compaction=None) as writer:
            writer.delete([HOSTILE[gone - 1], absent[gone]])
        table.compact(flush=True)
        check(gone)
