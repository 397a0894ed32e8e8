"""Settings: the defaults of the contract, what a table stores of them, and what is refused."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal import InvalidInputError, WriterConfig
from lance_memwal.config import WriterSettings

MIB = 1024 * 1024
SHARD = "11111111-2222-4333-8444-555555555555"
CONTRACT: dict[str, Any] = {
    "shard_id": None,
    "shard_spec_id": 0,
    "durable_write": True,
    "sync_indexed_write": True,
    "max_wal_buffer_size": 10 * MIB,
    "max_wal_flush_interval_ms": 100,
    "commit_linger_ms": 0,
    "max_memtable_size": 256 * MIB,
    "max_memtable_rows": 100_000,
    "max_memtable_batches": 8_000,
    "max_memtable_age_ms": 300_000,
    "manifest_scan_batch_size": 2,
    "max_unflushed_memtable_bytes": 1024 * MIB,
    "backpressure_log_interval_ms": 30_000,
    "async_index_buffer_rows": 10_000,
    "async_index_interval_ms": 1_000,
    "stats_log_interval_ms": 60_000,
    "enable_memtable": True,
    "max_wal_persist_retries": 3,
    "wal_persist_retry_base_delay_ms": 50,
    "fsync": True,
    "max_entry_bytes": 256 * MIB,
}


def test_the_defaults_are_those_of_the_contract() -> None:
    config = WriterConfig()
    assert {f.name: getattr(config, f.name) for f in fields(WriterConfig)} == CONTRACT


def test_a_table_stores_every_tunable_and_never_the_shard() -> None:
    stored = WriterConfig(shard_id=SHARD, shard_spec_id=7).to_defaults()
    assert set(stored) == set(CONTRACT) - {"shard_id", "shard_spec_id"}
    assert stored["max_memtable_rows"] == "100000"
    assert stored["durable_write"] == "true"


def test_durations_that_are_off_are_stored_as_zero_and_come_back_as_none() -> None:
    config = WriterConfig(max_wal_flush_interval_ms=None, stats_log_interval_ms=None)
    stored = config.to_defaults()
    assert (stored["max_wal_flush_interval_ms"], stored["stats_log_interval_ms"]) == ("0", "0")
    assert WriterConfig.from_defaults(stored) == config


settings = st.fixed_dictionaries(
    {},
    optional={
        "durable_write": st.booleans(),
        "enable_memtable": st.booleans(),
        "fsync": st.booleans(),
        "sync_indexed_write": st.booleans(),
        "max_wal_buffer_size": st.integers(0, 1 << 40),
        "max_wal_flush_interval_ms": st.none() | st.integers(1, 1 << 40),
        "stats_log_interval_ms": st.none() | st.integers(1, 1 << 40),
        "max_memtable_age_ms": st.none() | st.integers(1, 1 << 40),
        "max_memtable_rows": st.integers(1, 1 << 62),
        "max_entry_bytes": st.integers(1, 1 << 30),
        "max_wal_persist_retries": st.integers(0, 100),
    },
)


@given(settings)
def test_what_is_stored_comes_back_the_same(changes: dict[str, Any]) -> None:
    config = WriterConfig(**changes)
    assert WriterConfig.from_defaults(config.to_defaults()) == config


def test_extra_stored_keys_belong_to_somebody_else_and_are_ignored() -> None:
    stored = {"team": "blue", "max_memtable_rows": "7", "shard_id": "not even a uuid", "shard_spec_id": "x"}
    assert WriterConfig.from_defaults(stored) == WriterConfig(max_memtable_rows=7)


def test_missing_stored_keys_have_their_defaults() -> None:
    assert WriterConfig.from_defaults({}) == WriterConfig()


@pytest.mark.parametrize(
    "stored",
    [{"durable_write": "yes"}, {"max_memtable_rows": "many"}, {"max_memtable_rows": "0"}, {"fsync": ""}],
)
def test_stored_values_that_mean_nothing_are_refused_by_name(stored: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(stored))):
        WriterConfig.from_defaults(stored)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("durable_write", 1),
        ("enable_memtable", None),
        ("fsync", "true"),
        ("sync_indexed_write", 0),
        ("max_wal_buffer_size", -1),
        ("max_wal_buffer_size", 1.5),
        ("max_wal_flush_interval_ms", 0),
        ("stats_log_interval_ms", -5),
        ("max_memtable_age_ms", 0),
        ("max_memtable_size", 0),
        ("max_memtable_rows", 0),
        ("max_memtable_rows", True),
        ("max_memtable_batches", 0),
        ("manifest_scan_batch_size", 0),
        ("max_unflushed_memtable_bytes", 0),
        ("backpressure_log_interval_ms", 0),
        ("async_index_buffer_rows", 0),
        ("async_index_interval_ms", None),
        ("max_wal_persist_retries", -1),
        ("wal_persist_retry_base_delay_ms", -1),
        ("max_entry_bytes", 0),
        ("max_entry_bytes", 1 << 31),
        ("shard_spec_id", -1),
        ("shard_id", "nope"),
        ("shard_id", SHARD.upper().replace("1", "A")),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match="shard id" if name == "shard_id" else name):
        WriterConfig(**{name: value})


def test_replace_changes_only_what_it_is_told_and_validates_it() -> None:
    config = WriterConfig(max_memtable_rows=5)
    assert config.replace(fsync=False) == WriterConfig(max_memtable_rows=5, fsync=False)
    assert config == WriterConfig(max_memtable_rows=5)
    with pytest.raises(InvalidInputError, match="max_memtable_rows"):
        config.replace(max_memtable_rows=-1)


def test_the_settings_of_writers_are_the_fields_of_a_config() -> None:
    assert get_type_hints(WriterSettings) == get_type_hints(WriterConfig)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("max_memtable_row", "did you mean 'max_memtable_rows'"),
        ("Fsync", "did you mean 'fsync'"),
        ("x", "known: async_"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(name: str, named: str) -> None:
    unknown: Any = {name: 1}
    with pytest.raises(InvalidInputError, match=named):
        WriterConfig().replace(**unknown)
