"""Randomised searches between puts, deletes, flushes and compactions: only live rows, and k of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.harness.profile import scaled
from tests.kit.search import WORDS, Spread, ids, spread


def one_search(made: Spread, chance: random.Random) -> None:
    kind, k = chance.choice(["vector", "text", "both", "memtable"]), chance.choice([1, 3, 10, 50])
    tag = chance.choice([None, chance.randrange(10)])
    options: dict[str, Any] = {"k": k, "filter": None if tag is None else f"tag = {tag}"}
    word = chance.choice(WORDS)
    if kind == "memtable":
        scan = made.writer.scan().nearest("v", made.make.vector(), k)
        check_rows(made, scan.to_table())
        return
    if kind != "text":
        options.update(vector=made.make.vector(), nprobes=chance.choice([1, 20]))
    if kind != "vector":
        options["text"] = word
    found = made.table.search(**options)
    check_rows(made, found)
    matching = made.matching(tag)
    near = sum(row.vector is not None for row in matching) if kind != "text" else 0
    texts = sum(row.text is not None and word in row.text.split(" ") for row in matching) if kind != "vector" else 0
    assert found.num_rows >= min(k, max(near, texts)), f"{kind}: k is not filled"
    assert tag is None or set(found.column("tag").to_pylist()) <= {tag}


def check_rows(made: Spread, found: pa.Table) -> None:
    """Every row is live, once, and in its newest version."""
    assert len(set(ids(found))) == found.num_rows
    for row in found.select(["id", "v", "t", "tag"]).to_pylist():
        live = made.live.get(row["id"])
        assert live is not None, f"row {row['id']} was deleted"
        assert (row["t"], row["tag"]) == (live.text, live.tag), f"row {row['id']} was replaced"
        if live.vector is not None:
            np.testing.assert_array_equal(np.array(row["v"], np.float32), live.vector)


@pytest.mark.scaled
@pytest.mark.parametrize("deferred", [False, True], ids=["indexed at once", "indexed later"])
def test_random_searches_return_k_live_rows_in_their_newest_version(tmp_path: Path, deferred: bool) -> None:
    """Lessons 12, 21 to 25: 10,000 queries at full scale (two times 5,000)."""
    made = spread(
        tmp_path,
        rows=300,
        text_options={},
        metric="l2",
        nulls=0.05,
        sync_indexed_write=not deferred,
        max_memtable_rows=200,
    )
    chance = random.Random(7)
    for step in range(scaled(ci=120, prove=5_000)):
        action = chance.random()
        keys = sorted(made.live)
        if action < 0.25:
            made.put(chance.sample(keys, min(len(keys), 10)) + [6_000_000 + step * 10 + i for i in range(2)])
        elif action < 0.4 and len(keys) > 120:
            made.delete(chance.sample(keys, 8))
        elif action < 0.43:
            made.writer.force_seal_active()
        elif action < 0.44:
            made.flush()
            made.table.compact()
        one_search(made, chance)
    made.writer.close()
    for _ in range(10):
        found = made.table.search(vector=made.make.vector(), k=10)
        check_rows(made, found)
        assert found.num_rows == 10
