"""A table against a dict: partial updates, conditions, compare and set, counted deletes; flush, compaction, crash, reopen."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.harness.shard_rows import peer_rows
from tests.kit.writers import SECONDS, key_field

SCHEMA = pa.schema([key_field(), pa.field("a", pa.int64()), pa.field("b", pa.string())])
KEYS = st.integers(0, 7)
NUMBERS = st.none() | st.integers(0, 5)
WORDS = st.none() | st.sampled_from(["x", "y"])
WHOLE = st.lists(st.fixed_dictionaries({"id": KEYS, "a": NUMBERS, "b": WORDS}), min_size=1, max_size=5)
PARTS = st.lists(st.fixed_dictionaries({"id": KEYS}, optional={"a": NUMBERS, "b": WORDS}), min_size=1, max_size=5)
SETTINGS = st.fixed_dictionaries(
    {
        "max_memtable_rows": st.sampled_from([3, 100_000]),
        "durable_write": st.sampled_from([True, True, False]),
        "max_entry_bytes": st.sampled_from([500, 1 << 20]),
    }
)
PROFILE = settings(
    max_examples=scaled(ci=6, prove=300),
    stateful_step_count=scaled(ci=20, prove=60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
Row = dict[str, Any]


class ResolvedMachine(RuleBasedStateMachine):
    """One writer, and a dict that says what its table must hold."""

    @initialize(config=SETTINGS)
    def create(self, config: dict[str, Any]) -> None:
        self.root = tempfile.mkdtemp(prefix="memwal-resolved-")
        self.model: dict[int, Row] = {key: {"id": key, "a": 1, "b": "base"} for key in (1, 5)}
        self.table = mw.create_table(self.root + "/t", pa.Table.from_pylist(list(self.model.values()), SCHEMA))
        self.open(config)

    def open(self, config: dict[str, Any]) -> None:
        self.writer = self.table.writer(compaction=None, fsync=False, **config)

    def rejected(self, result: Any) -> list[int]:
        return [] if result.rejected is None else sorted(result.rejected.column("id").to_pylist())

    def applied(self, rows: Sequence[Row], admits: Any) -> list[int]:
        """Bring the model up to date row by row; returns the keys that were kept out."""
        refused = []
        for row in rows:
            old = self.model.get(row["id"])
            if admits(row, old):
                self.model[row["id"]] = {"a": None, "b": None, **(old or {}), **row}
            else:
                refused.append(row["id"])
        return sorted(refused)

    @rule(rows=WHOLE)
    def put(self, rows: list[Row]) -> None:
        self.applied(rows, lambda *_: True)
        assert self.writer.put(rows).written == len(rows)

    @rule(rows=PARTS)
    def keep(self, rows: list[Row]) -> None:
        self.applied(rows, lambda *_: True)
        assert self.writer.put(rows, missing="keep").rejected is None

    @rule(rows=PARTS)
    def update(self, rows: list[Row]) -> None:
        matched = len({row["id"] for row in rows} & self.model.keys())
        if any(row["id"] not in self.model for row in rows):
            with pytest.raises(mw.InvalidInputError):
                self.writer.update(rows)
            return
        self.applied(rows, lambda *_: True)
        assert self.writer.update(rows).matched == matched

    @rule(rows=WHOLE)
    def put_absent(self, rows: list[Row]) -> None:
        refused = self.applied(rows, lambda _, old: old is None)
        assert self.rejected(self.writer.put(rows, if_absent=True)) == refused

    @rule(rows=WHOLE)
    def put_larger(self, rows: list[Row]) -> None:
        def larger(row: Row, old: Row | None) -> bool:
            return old is None or (row["a"] is not None and old["a"] is not None and row["a"] > old["a"])

        refused = self.applied(rows, larger)
        assert self.rejected(self.writer.put(rows, where="excluded.a > a")) == refused

    @rule(rows=PARTS)
    def keep_where(self, rows: list[Row]) -> None:
        refused = self.applied(rows, lambda _, old: old is None or old["b"] == "x")
        assert self.rejected(self.writer.put(rows, missing="keep", where="b = 'x'")) == refused

    @rule(row=st.fixed_dictionaries({"id": KEYS, "a": NUMBERS, "b": WORDS}), right=st.booleans(), gone=st.booleans())
    def compare(self, row: Row, right: bool, gone: bool) -> None:
        key, old = row["id"], self.model.get(row["id"])
        expected = old if right else {"id": key, "a": 99, "b": None}
        assert self.writer.compare_and_set(key, expected, None if gone else row) is (right or expected == old)
        if right:
            self.model.pop(key, None)
            if not gone:
                self.model[key] = row

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def delete(self, keys: list[int]) -> None:
        assert self.writer.delete(keys, count=True).matched == len(self.model.keys() & set(keys))
        for key in keys:
            self.model.pop(key, None)

    @rule(word=st.sampled_from(["x", "y", "base"]), least=st.integers(0, 5))
    def delete_where(self, word: str, least: int) -> None:
        gone = [k for k, row in self.model.items() if row["b"] == word and row["a"] is not None and row["a"] >= least]
        assert self.writer.delete(where=f"b = '{word}' and a >= {least}").matched == len(gone)
        for key in gone:
            del self.model[key]

    @rule(least=st.integers(0, 5))
    def update_where(self, least: int) -> None:
        found = [row for row in self.model.values() if row["a"] is not None and row["a"] <= least]
        result = self.writer.update(where=f"a <= {least}", set={"a": "a + id", "b": "'y'"})
        assert (result.matched, result.written, result.rejected) == (len(found), len(found), None)
        for row in found:
            self.model[row["id"]] = {"id": row["id"], "a": row["a"] + row["id"], "b": "y"}

    @rule()
    def flush(self) -> None:
        self.writer.flush(SECONDS)

    @rule()
    def compact(self) -> None:
        self.writer.flush(SECONDS)
        self.table.compact()

    @rule(config=SETTINGS)
    def reopen(self, config: dict[str, Any]) -> None:
        self.writer.close()
        self.open(config)

    @rule(config=SETTINGS)
    def crash(self, config: dict[str, Any]) -> None:
        if all(shard.config.durable_write for shard in self.writer.shard_writers.values()):
            self.writer.abort()
            self.open(config)

    @invariant()
    def a_reader_sees_the_model(self) -> None:
        if hasattr(self, "writer"):
            found = self.table.scan().to_table().to_pylist()
            assert sorted(found, key=lambda row: row["id"]) == [self.model[key] for key in sorted(self.model)]

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        self.writer.close()
        for shard in self.table.shards():
            found = peer_rows(self.root + "/t", shard.shard_id).to_pylist()
            assert {row["id"]: {name: row[name] for name in SCHEMA.names} for row in found} == self.model
        shutil.rmtree(self.root)


ResolvedWrites = pytest.mark.scaled(ResolvedMachine.TestCase)
ResolvedWrites.settings = PROFILE
