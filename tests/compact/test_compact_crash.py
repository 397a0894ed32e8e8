"""Kill the compactor and the collector at every step: nothing is lost, nothing is there twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from compact_child import maintain

from tests.harness.deaths import KILLED
from tests.harness.kill_points import COMPACT_POINTS_OF, GC_POINTS
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.kit.compaction import Kept

NOT_HERE = {"gc.before_orphan", "gc.before_rollup"}  # these lives leave nothing of the kind


@pytest.mark.scaled
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", COMPACT_POINTS_OF)
def test_killed_compactions_and_collections_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    wanted = scaled(ci=15, prove=70)
    points = [*COMPACT_POINTS_OF[kind], *(point for point in GC_POINTS if point not in NOT_HERE)]
    died_at: Counter[str] = Counter()
    draw = random.Random(7)
    kept, life = _table(tmp_path / "t0", kind, 0), 0
    while sum(died_at.values()) < wanted or not set(points) <= set(died_at):
        life += 1
        assert life < 3 * wanted, f"these points are never reached: {set(points) - set(died_at)}"
        rare = min(points, key=lambda point: died_at[point])
        _one_life(kept, draw, None if life % 6 == 0 else rare, died_at)
        if life % 8 == 0:
            _finish(kept)
            kept = _table(tmp_path / f"t{life}", kind, life)
    _finish(kept)


def _table(place: Path, kind: str, seed: int) -> Kept:
    kept = Kept(place, kind, seed=seed)
    kept.generations(1)
    kept.table.compact()
    return kept


def _finish(kept: Kept) -> None:
    kept.table.compact()
    assert kept.plain() == kept.expected
    assert kept.shown() == kept.expected


def _one_life(kept: Kept, draw: random.Random, point: str | None, died_at: Counter[str]) -> None:
    """Write, then let a child maintain the table and die, while the writer lives; compare everything afterwards."""
    with kept.table.writer(compaction=None) as writer:
        for _ in range(draw.randint(1, 3)):
            kept.write(writer)
            writer.flush()
        kept.write(writer)  # not flushed: in the log and in memory only
        memory_bytes = draw.choice((1, 1 << 20))
        child = start(maintain, kept.uri, point, 1 if point is None else draw.choice((1, 1, 2)), memory_bytes)
        if point is None:
            child.receive(10.0)
            child.receive(draw.random() * 0.1)
            child.kill()
        failure = _hear(child)
        if child.wait(30.0) == KILLED:
            died_at[point or "anywhere"] += 1
        assert failure is None, failure
        assert kept.shown() == kept.expected
        kept.write(writer)
        report = kept.table.verify()
        assert report.ok, report.problems
    assert kept.shown() == kept.expected


def _hear(child: object) -> str | None:
    failure = None
    while True:
        try:
            message = child.receive(30.0)  # type: ignore[attr-defined]
        except EOFError:
            return failure
        if message is None:
            return "nothing was heard for 30 seconds"
        if message[0] == "failed":
            failure = message[1]
