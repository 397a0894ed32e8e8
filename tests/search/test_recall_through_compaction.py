"""Vector search through a base index finds at least 95 % of the ten nearest rows, with and without filters, at every stage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.search import Spread, ids, spread

METRICS = ["l2", "cosine", "dot"]
FILTERS: dict[str, int | None] = {"": None, "tag = 3": 3}


def recall(made: Spread, metric: str, queries: int) -> float:
    """The least recall@10 over the filters, against brute force."""
    found = []
    for text, tag in FILTERS.items():
        hits = 0
        for _ in range(queries):
            query = made.make.vector()
            answer = ids(made.table.search(vector=query, k=10, columns=["id"], filter=text or None))
            assert len(answer) == 10
            hits += len(set(answer) & set(made.exact(query, 10, metric, tag)))
        found.append(hits / (10 * queries))
    return min(found)


def until_done(work: Callable[[], object], check: Callable[[], None]) -> None:
    """Run `check` again and again while `work` runs, at least once."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        while True:
            check()
            if not thread.is_alive():
                return
    finally:
        thread.join(60)


@pytest.mark.scaled
@pytest.mark.parametrize("metric", METRICS)
def test_recall_stays_before_during_and_after_compaction(tmp_path: Path, metric: str) -> None:
    rows, dim, queries = scaled(ci=2_000, prove=20_000), scaled(ci=32, prove=128), scaled(ci=15, prove=40)
    index = {"index_type": "IVF_PQ", "num_partitions": scaled(ci=4, prove=32), "num_sub_vectors": dim // 4}
    made = spread(tmp_path, rows=rows, dim=dim, metric=metric, index=index)
    made.change(8_000_000, rows // 8)
    made.flush()
    made.writer.close()
    table = made.table
    assert recall(made, metric, queries) >= 0.95
    table.compact(max_generations=1)
    assert recall(made, metric, queries) >= 0.95
    seen: list[float] = []
    until_done(table.compact, lambda: seen.append(recall(made, metric, queries)))
    assert min(seen) >= 0.95
    until_done(table.maintain, lambda: seen.append(recall(made, metric, queries)))
    assert min(seen) >= 0.95
    table.gc(grace_seconds=0)
    assert recall(made, metric, queries) >= 0.95
    assert table.count_rows() == len(made.live) == table.dataset.count_rows()


def test_text_answers_stay_the_same_through_compaction(tmp_path: Path) -> None:
    """The rows are the same in every stage, and so are their scores."""
    made = spread(tmp_path, rows=600, text_options={}, metric=None)
    made.flush()
    made.writer.close()
    texts = ["cedar", "otter pine", "amber basalt maple"]

    def answers() -> list[list[float]]:
        table = mw.open_table(made.table.uri)
        return [table.search(text=text, k=20, columns=["id"])["_score"].to_pylist() for text in texts]

    expected = answers()

    def check() -> None:
        np.testing.assert_allclose(answers(), expected, atol=1e-5)

    made.table.compact(max_generations=1)
    check()
    until_done(made.table.compact, check)
    until_done(made.table.dataset.optimize.optimize_indices, check)
    until_done(made.table.dataset.optimize.compact_files, check)
    check()
