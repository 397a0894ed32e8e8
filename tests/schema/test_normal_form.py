"""What stands below a null, in tombstones and in dictionaries is valid for every reader, and the values stay the same."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.normal_form import blank, loose, normal, nulls

TAG = pa.dictionary(pa.int8(), pa.string())


def strict(kind: pa.DataType, name: str = "x") -> pa.Field:
    return pa.field(name, kind, nullable=False)


STRICT_KINDS = [
    pa.struct([strict(TAG)]),
    pa.struct([strict(pa.struct([strict(TAG)]))]),
    pa.struct(
        [strict(pa.list_(strict(TAG))), strict(pa.map_(TAG, pa.int8()), "m"), strict(pa.list_(strict(TAG), 3), "f")]
    ),
    pa.struct(
        [strict(pa.uuid()), strict(pa.decimal256(40, 2), "d"), strict(pa.binary(4), "b"), strict(pa.float16(), "h")]
    ),
    pa.struct([strict(pa.struct([]))]),
    pa.list_(strict(TAG)),
    pa.list_(strict(pa.float32()), 2),
    pa.list_(strict(pa.struct([strict(TAG)])), 2),
    pa.large_list(strict(pa.struct([strict(pa.large_string())]))),
    pa.map_(pa.string(), strict(TAG, "value")),
    pa.map_(pa.string(), strict(pa.int32(), "value")),
]


@pytest.mark.parametrize("kind", STRICT_KINDS, ids=str)
def test_values_and_nulls_of_strict_types_become_valid_and_stay_the_same(kind: pa.DataType) -> None:
    value, missing = blank(kind), nulls(2, kind)
    assert missing.null_count == 2
    assert missing.type == kind
    unfilled = pa.nulls(2, kind)  # what Arrow itself makes of nulls, not always valid
    for parts in ([missing, value], [value, unfilled, value], [unfilled, value, missing]):
        whole = pa.concat_arrays(parts)
        for array in (whole, whole.slice(1)):
            found = normal(array)
            found.validate(full=True)
            assert found.type == kind
            assert found.to_pylist() == array.to_pylist()


@pytest.mark.parametrize("kind", STRICT_KINDS, ids=str)
def test_python_nulls_of_strict_types_are_converted_to_valid_arrays(kind: pa.DataType) -> None:
    if pa.types.is_struct(kind) and isinstance(kind.field(0).type, pa.BaseExtensionType):
        kind = pa.struct(list(kind)[1:])  # Arrow itself converts no Python values to extension types inside others
    found = normal(pa.array([None, None], loose(kind)), kind)
    found.validate(full=True)
    assert found.to_pylist() == [None, None]


def test_a_null_in_a_visible_strict_field_is_refused_by_name() -> None:
    inner = pa.struct([strict(TAG, "tag")])
    given = pa.array([{"tag": None}], loose(inner))
    with pytest.raises(InvalidInputError, match="'tag' must not be null"):
        normal(given, inner)
    with pytest.raises(InvalidInputError, match="'item' must not be null"):
        normal(pa.array([[1, None]], pa.list_(pa.int8())), pa.list_(strict(pa.int8(), "item")))


def test_a_full_dictionary_does_not_grow_by_what_fills_it() -> None:
    kind = pa.struct([strict(TAG, "tag")])
    words = pa.array([f"w{i}" for i in range(128)])
    tags = pa.DictionaryArray.from_arrays(pa.array([*range(128), None], pa.int8()), words)
    given = pa.StructArray.from_arrays([tags], fields=[pa.field("tag", TAG)], mask=pa.array([False] * 128 + [True]))
    found = normal(given, kind)
    found.validate(full=True)
    assert len(found.field(0).dictionary) == 128
    assert found.to_pylist()[-1] is None


@pytest.mark.parametrize("wrap", ["plain", "struct", "list", "fixed", "map"])
def test_a_null_among_dictionary_values_moves_into_the_indices(wrap: str) -> None:
    tags = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 2], pa.int8()), pa.array(["z", None, "y"]))
    array = {
        "plain": lambda: tags,
        "struct": lambda: pa.StructArray.from_arrays([tags], names=["t"]),
        "list": lambda: pa.ListArray.from_arrays([0, 1, 3, 4], tags),
        "fixed": lambda: pa.FixedSizeListArray.from_arrays(tags, 2),
        "map": lambda: pa.MapArray.from_arrays([0, 2, 4], pa.array(list("abcd")), tags),
    }[wrap]()
    found = normal(array)
    found.validate(full=True)
    assert found.to_pylist() == array.to_pylist()
    inner = {"plain": lambda: found, "struct": lambda: found.field(0), "map": lambda: found.items}.get(
        wrap, lambda: found.values
    )()
    assert inner.dictionary.to_pylist() == ["z", "y"]
