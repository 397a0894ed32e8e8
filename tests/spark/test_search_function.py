"""Search in SQL: the table function `memwal_search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw


def test_vectors_and_texts_are_found_from_sql(spark: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "docs")
    meta = pa.struct([("a", pa.int32())])
    fields = [("title", pa.string()), ("v", pa.list_(pa.float32(), 2)), ("meta", meta)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *fields])
    titles, vectors = ["red tea", "green tea", "salt"], [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]]
    with mw.create_table(uri, schema, primary_key="id").writer() as writer:
        writer.put({"id": [1, 2, 3], "title": titles, "v": vectors, "meta": [{"a": 7}] * 3})

    def rows(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(text).collect()]

    found = f"FROM memwal_search('{uri}', vector => array(1f, 1f), k => 2)"
    assert rows(f"SELECT id, meta.a, _distance {found} ORDER BY _distance") == [(2, 7, 0.0), (1, 7, 2.0)]
    texts = (
        f"memwal_search(table => '{uri}', text => 'tea', column => 'title', columns => 'id,title', filter => 'id < 2')"
    )
    (best,) = rows(f"SELECT * FROM {texts}")
    assert best[:2] == (1, "red tea")
    assert best[2] > 0
    with pytest.raises(Exception, match="must be a constant"):
        rows(f"SELECT * FROM VALUES ('{uri}') t(u), LATERAL memwal_search(t.u, text => 'tea', column => 'title')")
