"""The digest of rows: the same whatever their order and batches, another one if a value is another one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lance_memwal.rows.digest import RowDigest
from tests.kit.column_types import FLAT, NESTED, OTHERS, column, holds, is_odd_dictionary

KINDS = [kind for kind in [*FLAT, *OTHERS, *NESTED] if not pa.types.is_union(kind) and not pa.types.is_null(kind)]
KINDS = [
    kind for kind in KINDS if not holds(kind, pa.types.is_run_end_encoded, pa.types.is_list_view, is_odd_dictionary)
]
KINDS = [kind for kind in KINDS if not pa.types.is_interval(kind)]  # no table holds these


def digest(*batches: pa.RecordBatch) -> str:
    return str(RowDigest.of(batches))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_of_every_type_have_a_digest_whatever_their_order_and_batches(kind: pa.DataType) -> None:
    values = column(kind, list(range(12)), holes=True)
    batch = pa.record_batch({"n": pa.array(range(12)), "x": values})
    found = digest(batch)
    assert digest(batch.slice(5), batch.slice(0, 2), batch.slice(2, 3)) == found
    shuffled = np.random.default_rng(1).permutation(12)
    moved = [batch.slice(int(number), 1) for number in shuffled]
    assert digest(*moved) == found
    assert digest(*moved[1:]) != found
    assert digest(*moved, moved[0]) != found
    swapped = pa.record_batch({"n": batch.column("n"), "x": pa.concat_arrays([values.slice(6), values.slice(0, 6)])})
    if swapped.column("x") != values:
        assert digest(swapped) != found, "a value belongs to its row"


def test_a_column_without_values_changes_nothing_and_zero_is_a_value() -> None:
    plain = pa.record_batch({"a": pa.array([1, 2])})
    assert digest(plain.append_column("new", pa.nulls(2, pa.string()))) == digest(plain)
    zeros = [pa.array([0, 0]), pa.array([0.0, 0.0]), pa.array(["", ""]), pa.array([b"", b""]), pa.array([[], []])]
    digests = {digest(plain.append_column("new", array)) for array in [*zeros, pa.array([False, False])]}
    assert digest(plain) not in digests
    assert digest(pa.record_batch({"a": [1], "b": [2]})) != digest(pa.record_batch({"a": [2], "b": [1]}))
    assert (digest(), digest(plain.slice(0, 0))) == ("0" * 16, "0" * 16)


def test_parts_add_up() -> None:
    batch = pa.record_batch({"a": pa.array(range(100)), "b": pa.array([str(n % 7) for n in range(100)])})
    parts = [RowDigest(RowDigest.of([batch.slice(start, 30)]).total) for start in range(0, 100, 30)]
    assert str(sum(parts, RowDigest())) == digest(batch)
