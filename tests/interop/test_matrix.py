"""Who wrote, who reads, who compacts, who maintains: the same rows and the same best answers at every stage.

{ours, pylance, LanceDB} write and take the shard over from each other; then every system reads, searches by vector and
by text, before the flush, after it, after a compaction by ours or by pylance, after upkeep by each, and after collection.
What a system cannot do is named by it (`tests.kit.systems`), and collected here: the list is part of the test.

Not in the list, because no format has it: rows that are only in a log are seen by their own writer and by ours, which
reads logs. The other two see them after the flush.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.systems import CannotError, Lancedb, Ours, Pylance, System, indexed_table, rows_for

SYSTEMS: dict[str, type[System]] = {"ours": Ours, "pylance": Pylance, "lancedb": Lancedb}
FRESH = range(1_000, 1_006)
UPDATED = range(5, 8)
CANNOT = {
    ("pylance", "matching"): "no text search over SSTables",
    ("pylance", "nearest"): "no memtable",
    ("lancedb", "compact"): "on its service only",
}


class MatrixLife:
    """One table, what it must hold, and what every system finds in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.table = indexed_table(place)
        self.model = dict(zip(range(300), rows_for(range(300))["t"].to_pylist(), strict=True))
        self.written: list[pa.Table] = []

    def write(self, name: str, system: System, seed: int, numbers: range) -> None:
        rows = rows_for(numbers, seed)
        self.attempt(name, "write", lambda: system.write(rows))
        self.written.append(rows)
        self.model |= dict(zip(rows["id"].to_pylist(), rows["t"].to_pylist(), strict=True))

    def attempt(self, name: str, verb: str, call: Callable[[], object]) -> object:
        """What `call` returns; None if the system says that it cannot, for the reason that is listed."""
        try:
            return call()
        except CannotError as error:
            reason = str(error)
        assert CANNOT[name, verb] in reason
        return None

    def check(self, stage: str, systems: dict[str, System]) -> None:
        """Each of `systems` sees every row, and finds each row that was written last by its vector and its word."""
        latest = {row["id"]: row for rows in self.written for row in rows.to_pylist()}
        for name, system in systems.items():
            assert system.rows() == self.model, (stage, name)
            for number, row in latest.items():
                word = row["t"].split()[0]
                found = self.attempt(name, "nearest", lambda system=system, row=row: system.nearest(row["v"]))
                assert found in (number, None), (stage, name, "nearest", number)
                found = self.attempt(name, "matching", lambda system=system, word=word: system.matching(word))
                assert found in (number, None), (stage, name, "matching", number)


@pytest.mark.parametrize("first", SYSTEMS)
@pytest.mark.parametrize("second", SYSTEMS)
def test_every_system_finds_every_row_at_every_stage(tmp_path: Path, first: str, second: str) -> None:
    life = MatrixLife(tmp_path)
    systems = {name: system(tmp_path) for name, system in SYSTEMS.items()}
    life.write(first, systems[first], 1, FRESH)
    life.check("before the flush", {name: systems[name] for name in {first, "ours"}})
    if second != first:
        systems[first].end_writing()
        life.write(second, systems[second], 2, UPDATED)  # takes the shard over
        life.check("after the takeover", {name: systems[name] for name in {second, "ours"}})
    for name in (second, first):
        systems[name].end_writing()
    life.check("after the flush", systems)
    life.attempt(second, "compact", systems[second].compact)
    life.check("after compaction by the second", systems)
    systems["ours"].compact()
    life.check("after compaction by ours", systems)
    life.table.gc(grace_seconds=0)
    life.check("after collection", systems)
    systems[first].maintain()
    life.check("after upkeep by the first", systems)
    systems["ours"].maintain()
    life.check("after upkeep by ours", systems)
    assert [shard.generations for shard in mw.open_table(life.table.uri).shards()] == [()]
