"""Lance itself works with the options that the service fixtures hand out, at the URIs that a location gives."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from lance_memwal.store.location import resolve


@pytest.mark.parametrize("service", ["s3_table", "azure_table"])
def test_lance_writes_and_reads_datasets_where_the_location_says(service: str, request: pytest.FixtureRequest) -> None:
    uri, options = request.getfixturevalue(service)
    location = resolve(uri, options)
    for target in (location.dataset_uri, location.child_uri("_mem_wal/generation")):
        lance.write_dataset(pa.table({"a": [1, 2]}), target, storage_options=dict(location.storage_options or {}))
        lance.write_dataset(
            pa.table({"a": [3]}), target, storage_options=dict(location.storage_options or {}), mode="append"
        )
        found = lance.dataset(target, storage_options=dict(location.storage_options or {})).to_table()
        assert found.column("a").to_pylist() == [1, 2, 3]
    below = location.store.list_names("_mem_wal")
    assert below == ["generation"]
    assert "_versions" in location.store.list_names("_mem_wal/generation")
