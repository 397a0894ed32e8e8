"""One shard against a dict: puts, deletes, seals, flushes, crashes, takeovers, large puts, in any order."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.writers import KEYED, SECONDS, SHARD, UNKEYED, base_table, everything, rows

KEYS = st.integers(0, 9)
BATCHES = st.lists(st.lists(KEYS, min_size=1, max_size=4), min_size=1, max_size=3)
SETTINGS = st.fixed_dictionaries(
    {
        "durable_write": st.booleans(),
        "max_memtable_batches": st.sampled_from([2, 3, 8000]),
        "max_memtable_rows": st.sampled_from([3, 100_000]),
        "max_wal_flush_interval_ms": st.sampled_from([None, 1]),
        "max_unflushed_memtable_bytes": st.sampled_from([1, 5_000, 1 << 30]),
    }
)
PROFILE = settings(
    max_examples=scaled(ci=6, prove=400),
    stateful_step_count=scaled(ci=20, prove=60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class ShardMachine(RuleBasedStateMachine):
    """A keyed table with rows in its base, and one shard."""

    @initialize(config=SETTINGS)
    def create(self, config: dict[str, Any]) -> None:
        self.root = tempfile.mkdtemp(prefix="memwal-model-")
        self.model: dict[int, str] = {100: "base", 5: "base"}
        self.version = 0
        self.table = base_table(self.root + "/t", data=[{"id": k, "v": v} for k, v in self.model.items()])
        self.writer = self.open(config)

    def open(self, config: dict[str, Any]) -> mw.ShardWriter:
        return self.table.shard_writer(SHARD, fsync=False, wal_persist_retry_base_delay_ms=1, **config)

    def batches(self, keys: list[list[int]]) -> list[pa.RecordBatch]:
        made = []
        for group in keys:
            values = []
            for key in group:
                self.version += 1
                values.append(f"v{self.version}")
                self.model[key] = values[-1]
            made.append(pa.record_batch([pa.array(group), pa.array(values)], schema=KEYED))
        return made

    @rule(keys=BATCHES)
    def put(self, keys: list[list[int]]) -> None:
        self.writer.put(self.batches(keys))

    @rule(keys=BATCHES)
    def put_nowait(self, keys: list[list[int]]) -> None:
        self.writer.put_nowait(self.batches(keys)).wait()

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def delete(self, keys: list[int]) -> None:
        self.writer.delete(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(keys=BATCHES, version=st.integers(0, 3))
    def put_transaction(self, keys: list[list[int]], version: int) -> None:
        known = self.writer.transactions().get("app")
        before = dict(self.model)
        made = self.batches(keys)
        if known is not None and version <= known.version:
            self.model = before
            if version < known.version:
                with pytest.raises(mw.InvalidInputError):
                    self.writer.put(made, txn=("app", version))
                return
        assert self.writer.put(made, txn=("app", version)).skipped == (known is not None and version == known.version)

    @rule()
    def seal(self) -> None:
        self.writer.force_seal_active()

    @rule()
    def drain(self) -> None:
        self.writer.wait_for_flush_drain(SECONDS)

    @rule(config=SETTINGS)
    def close_and_reopen(self, config: dict[str, Any]) -> None:
        self.writer.close()
        assert {r["id"]: r["v"] for r in self.table.scan().to_table().to_pylist()} == self.model
        self.writer = self.open(config)

    @precondition(lambda self: self.writer.config.durable_write)
    @rule(config=SETTINGS)
    def crash_and_reopen(self, config: dict[str, Any]) -> None:
        self.writer.abort()
        self.writer = self.open(config)

    @precondition(lambda self: self.writer.config.durable_write)
    @rule(config=SETTINGS, key=KEYS)
    def take_over(self, config: dict[str, Any], key: int) -> None:
        old, self.writer = self.writer, self.open(config)
        with pytest.raises(mw.FencedError):
            old.put(rows([key], "never"))
        old.abort()

    @rule(config=SETTINGS, count=st.integers(5, 9))
    def put_large(self, config: dict[str, Any], count: int) -> None:
        self.writer.close()
        self.writer = self.open({**config, "max_entry_bytes": 50})
        self.writer.put(self.batches([list(range(count))]))

    @invariant()
    def every_reader_sees_the_model(self) -> None:
        if hasattr(self, "writer"):
            scanned = self.writer.lsm_scan().to_table().to_pylist()
            assert len(scanned) == len({row["id"] for row in scanned}), "a key twice"
            assert {row["id"]: row["v"] for row in scanned} == self.model
            found = {row["id"]: row["v"] for row in self.writer.lookup([*range(10), 100]).to_pylist()}
            assert found == self.model

    @invariant()
    def memtables_and_sstables_merged_by_hand_are_the_model(self) -> None:
        if hasattr(self, "writer"):
            by_hand = everything(self.writer, self.root + "/t")
            untouched = {k: v for k, v in self.model.items() if v == "base"}
            assert {**untouched, **by_hand} == self.model

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.abort()
            shutil.rmtree(self.root)


class AppendOnlyMachine(RuleBasedStateMachine):
    """A table without a key: every acknowledged row counts, exactly once."""

    @initialize(config=SETTINGS)
    def create(self, config: dict[str, Any]) -> None:
        self.root = tempfile.mkdtemp(prefix="memwal-model-")
        self.model: list[int] = []
        self.table = base_table(self.root + "/t", UNKEYED)
        self.writer = self.open(config)

    def open(self, config: dict[str, Any]) -> mw.ShardWriter:
        return self.table.shard_writer(SHARD, fsync=False, **config)

    @rule(keys=BATCHES)
    def put(self, keys: list[list[int]]) -> None:
        self.writer.put([rows(group, schema=UNKEYED) for group in keys])
        self.model += [key for group in keys for key in group]

    @rule()
    def flush(self) -> None:
        self.writer.force_seal_active()
        self.writer.wait_for_flush_drain(SECONDS)

    @rule(config=SETTINGS, crash=st.booleans())
    def reopen(self, config: dict[str, Any], crash: bool) -> None:
        if crash and self.writer.config.durable_write:
            self.writer.abort()
        else:
            self.writer.close()
        self.writer = self.open(config)

    @rule(keys=st.lists(KEYS, min_size=10, max_size=12))
    def put_large(self, keys: list[int]) -> None:
        self.writer.close()
        self.writer = self.open({"max_entry_bytes": 50})
        self.writer.put(rows(keys, schema=UNKEYED))
        self.model += keys

    @invariant()
    def every_row_is_there_once(self) -> None:
        if hasattr(self, "writer"):
            assert sorted(self.writer.lsm_scan().to_table().column("id").to_pylist()) == sorted(self.model)

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.abort()
            shutil.rmtree(self.root)


KeyedShard = pytest.mark.scaled(ShardMachine.TestCase)
KeyedShard.settings = PROFILE
AppendOnlyShard = pytest.mark.scaled(AppendOnlyMachine.TestCase)
AppendOnlyShard.settings = PROFILE
