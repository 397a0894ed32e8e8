"""Index specs: refused before anything is claimed, or built as told."""

from __future__ import annotations

import dataclasses

import lance
import pyarrow as pa
import pytest

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import BTreeIndex, FtsIndex, HnswIndex, IndexSpec, MemIndex

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), 4)),
        ("double_vector", pa.list_(pa.float64(), 4)),
        ("int_vector", pa.list_(pa.int8(), 4)),
        ("point", pa.struct([("x", pa.float64())])),
    ]
)


@pytest.mark.parametrize(
    "spec",
    [
        BTreeIndex("id"),
        BTreeIndex("text", "by_text"),
        FtsIndex("text"),
        FtsIndex("tags", "by_tags", stem=False),
        HnswIndex("vector"),
        HnswIndex("double_vector", metric="cosine", m=4, ef_construction=10),
    ],
)
def test_index_is_built_empty_and_under_its_name(spec: IndexSpec) -> None:
    first, second = spec.build(SCHEMA), spec.build(SCHEMA)
    assert isinstance(first, MemIndex)
    assert first is not second
    assert (first.name, first.column) == (spec.name or f"{spec.column}_idx", spec.column)
    assert (first.indexed_rows, first.size_bytes) == (0, 0)


@pytest.mark.parametrize(
    "spec",
    [
        BTreeIndex("missing"),
        BTreeIndex("vector"),
        BTreeIndex("point"),
        FtsIndex("missing"),
        FtsIndex("id"),
        FtsIndex("text", base_tokenizer="nonsense"),
        FtsIndex("text", language="Klingon"),
        HnswIndex("missing"),
        HnswIndex("id"),
        HnswIndex("int_vector"),
        HnswIndex("vector", metric="hamming"),  # type: ignore[arg-type]
        HnswIndex("vector", m=1),
        HnswIndex("vector", ef_construction=0),
    ],
)
def test_spec_that_cannot_be_honoured_is_refused_by_validate_and_build(spec: IndexSpec) -> None:
    with pytest.raises(InvalidInputError):
        spec.validate(SCHEMA)
    with pytest.raises(InvalidInputError):
        spec.build(SCHEMA)


def test_column_that_occurs_twice_is_refused() -> None:
    twice = pa.schema([("id", pa.int64()), ("id", pa.int64())])
    with pytest.raises(InvalidInputError, match="twice"):
        BTreeIndex("id").validate(twice)


def test_spec_is_frozen_and_hashable() -> None:
    spec = FtsIndex("text", custom_stop_words=["a", "b"])  # type: ignore[arg-type]
    assert hash(spec) == hash(dataclasses.replace(spec))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.column = "other"  # type: ignore[misc]


def test_mirror_of_a_lance_index_has_its_options_and_builds_the_same_index() -> None:
    table = pa.table({"text": ["the running dogs", "un été à la mer", "x" * 60]})
    options = {"language": "French", "stem": False, "custom_stop_words": ["dogs"], "max_token_length": 50}
    dataset = lance.write_dataset(table, "memory://spec-mirror")
    dataset.create_scalar_index("text", "INVERTED", name="base", with_position=True, **options)
    params = dataset.stats.index_stats("base")["indices"][0]["params"]
    spec = FtsIndex.from_lance("text", params, "base")
    assert spec.custom_stop_words == ("dogs",)
    assert spec.with_position
    dataset.create_scalar_index("text", spec.lance_type, name="again", replace=False, **spec.lance_options())
    assert dataset.stats.index_stats("again")["indices"][0]["params"] == params
    index = spec.build(table.schema)
    index.insert(table.to_batches()[0], 0)
    assert index.search("running", 3, None)[0].tolist() == [0]
    assert index.search("dogs", 3, None)[0].tolist() == []


def test_lance_index_without_a_mirror_is_refused() -> None:
    dataset = lance.write_dataset(pa.table({"text": ["a_b"]}), "memory://spec-code")
    dataset.create_scalar_index("text", "INVERTED", analyzer="code")
    params = dataset.stats.index_stats("text_idx")["indices"][0]["params"]
    with pytest.raises(InvalidInputError, match="code analyzer"):
        FtsIndex.from_lance("text", params)
    with pytest.raises(InvalidInputError, match="plain text"):
        FtsIndex.from_lance("text", {**params, "base_tokenizer": "simple", "lance_tokenizer": "json"})


def test_btree_needs_no_options_of_lance() -> None:
    spec = BTreeIndex("id")
    assert (spec.lance_type, spec.lance_options()) == ("BTREE", {})
