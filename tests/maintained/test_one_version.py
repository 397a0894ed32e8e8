"""A generation with mirrors of indexes is one version of a dataset, as the peer writes it, and its indexes are used."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.manifest import parse_lance_manifest

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        ("text", pa.string()),
        ("size", pa.int64()),
        ("vector", pa.list_(pa.float32(), 8)),
    ]
)


def rows(start: int, end: int) -> pa.Table:
    values = np.random.default_rng(start).random((end - start) * 8)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values, pa.float32()), 8)
    texts = [f"word{i % 7} common" for i in range(start, end)]
    return pa.table([pa.array(range(start, end)), texts, pa.array(range(start, end)), vectors], schema=SCHEMA)


def made(uri: Path) -> mw.Table:
    lance.write_dataset(rows(0, 200), uri)
    for column, kind in (("size", "BTREE"), ("text", "INVERTED")):
        lance.dataset(str(uri)).create_scalar_index(column, kind, name=f"{column}_index")
    lance.dataset(str(uri)).create_index("vector", "IVF_FLAT", num_partitions=2, name="vector_index")
    return mw.enable(
        str(uri),
        maintained_indexes=["size_index", "text_index", "vector_index"],
        writer_defaults={"fsync": False},
    )


def shape(generation: Path) -> tuple[list[str], list[int], list[str]]:
    """The versions of a generation, which parts its manifest has, and its indexes."""
    (manifest,) = (generation / "_versions").glob("*.manifest")
    parsed = parse_lance_manifest(manifest.read_bytes())
    indexes = sorted(index.name for index in lance.dataset(str(generation)).describe_indices())
    return [manifest.name], sorted({field.number for field in parsed.message}), indexes


def test_a_generation_of_ours_is_one_version_with_the_parts_that_the_peer_writes(tmp_path: Path) -> None:
    table, other = made(tmp_path / "ours"), made(tmp_path / "peer")
    with table.shard_writer() as writer:
        writer.put(rows(200, 260))
        writer.put(rows(230, 270))
    with lance.dataset(other.uri).mem_wal_writer(mw.shard_id_for(other.sharding)) as peer:
        for part in (rows(200, 260), rows(230, 270)):
            peer.put(part.combine_chunks().to_batches()[0])
    (ours,), (theirs,) = ((tmp_path / name).glob("_mem_wal/*/*_gen_1") for name in ("ours", "peer"))
    assert shape(ours) == shape(theirs)
    assert not list(ours.glob("_transactions/*"))
    generation = lance.dataset(str(ours))
    assert (generation.version, generation.count_rows()) == (1, 70)
    wanted = rows(230, 270)["vector"][11].values
    near = {"column": "vector", "q": wanted, "k": 1, "use_index": True}
    assert generation.to_table(columns=["id"], nearest=near)["id"].to_pylist() == [241]
    assert len(generation.to_table(columns=["id"], full_text_query="word3")) == 10
    assert "ScalarIndexQuery" in generation.scanner(filter="size = 241").explain_plan()
    found = mw.open_table(table.uri).search(vector=wanted.to_numpy(), k=1)
    assert found["id"].to_pylist() == [241]
    assert table.verify().ok
    table.compact()
    assert mw.open_table(table.uri).count_rows() == 270
