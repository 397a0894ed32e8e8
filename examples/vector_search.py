"""Embeddings that change while they are searched: fresh, replaced and deleted vectors, with an index on the base table.

Run: `python examples/vector_search.py`
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import lance_memwal as mw

DIMENSION = 32


def rows(ids: range, rng: np.random.Generator) -> pa.Table:
    """Random unit vectors with a title each."""
    matrix = rng.normal(size=(len(ids), DIMENSION)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), DIMENSION)
    return pa.table({"id": pa.array(ids, pa.int64()), "title": [f"document {i}" for i in ids], "vector": vectors})


def main() -> None:
    """Search over an indexed base, flushed rows and rows that were written a moment ago."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        table = mw.create_table(
            str(Path(directory) / "docs"), rows(range(5000), rng), primary_key="id", sharding=mw.Unsharded()
        )
        table.dataset.create_index("vector", "IVF_PQ", num_partitions=8, num_sub_vectors=8, metric="l2")
        query = rng.normal(size=DIMENSION).astype(np.float32)
        with table.writer() as writer:
            exact = rows(range(5000, 5001), rng).set_column(
                2, "vector", pa.FixedSizeListArray.from_arrays(pa.array(query), DIMENSION)
            )
            writer.put(exact)  # the best answer there can be, written just now
            best = writer.search(vector=query, k=3)
            print(best.select(["id", "_distance"]).to_pylist())
            if best["id"].to_pylist()[0] != 5000:
                raise SystemExit("the fresh row was not found")
            writer.delete([5000])
            if 5000 in writer.search(vector=query, k=3)["id"].to_pylist():
                raise SystemExit("a deleted row was found")
            found = writer.search(vector=query, text="4711", k=2, columns=["id", "title"])
            print(found.to_pylist())


if __name__ == "__main__":
    main()
