"""Settings of a shard writer: values, defaults, validation, and the string map that a table stores.

Owns `WriterConfig` and `WriterSettings`. Invariants:

1. A config that exists is valid: construction validates everything that needs no storage.
2. `WriterConfig.from_defaults(config.to_defaults())` equals `config` in every tunable.
3. `shard_id` and `shard_spec_id` are never stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, Unpack

from lance_memwal.arguments import check_flag, check_number, suggestion
from lance_memwal.errors import InvalidInputError
from lance_memwal.types import check_shard_id

DEFAULT_MEMTABLE_AGE_MS = 300_000
_MIB = 1024 * 1024
_LARGEST_ENTRY_BYTES = 1024 * _MIB  # readers refuse entries above 2 GiB, and encoding adds to the rows
_NEVER_STORED = frozenset({"shard_id", "shard_spec_id"})
_OPTIONAL_DURATIONS = frozenset({"max_wal_flush_interval_ms", "max_memtable_age_ms", "stats_log_interval_ms"})
_AT_LEAST_ONE = (
    "max_memtable_size",
    "max_memtable_rows",
    "max_memtable_batches",
    "manifest_scan_batch_size",
    "max_unflushed_memtable_bytes",
    "backpressure_log_interval_ms",
    "async_index_buffer_rows",
    "async_index_interval_ms",
)
_LONGEST_LINGER_MS = 10_000
_AT_LEAST_ZERO = ("shard_spec_id", "max_wal_buffer_size", "max_wal_persist_retries", "wal_persist_retry_base_delay_ms")


class ShardSettings(TypedDict, total=False):
    """The fields of `WriterConfig` as keyword arguments, without the shard."""

    shard_spec_id: int
    durable_write: bool
    sync_indexed_write: bool
    max_wal_buffer_size: int
    max_wal_flush_interval_ms: int | None
    max_memtable_size: int
    max_memtable_rows: int
    max_memtable_batches: int
    max_memtable_age_ms: int | None
    manifest_scan_batch_size: int
    max_unflushed_memtable_bytes: int
    backpressure_log_interval_ms: int
    async_index_buffer_rows: int
    async_index_interval_ms: int
    stats_log_interval_ms: int | None
    enable_memtable: bool
    max_wal_persist_retries: int
    wal_persist_retry_base_delay_ms: int
    fsync: bool
    max_entry_bytes: int
    commit_linger_ms: int


class WriterSettings(ShardSettings, total=False):
    """The fields of `WriterConfig` as keyword arguments."""

    shard_id: str | uuid.UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    """Settings of one writer; every field has the default of the behaviour contract.

    `shard_id=None` means a new random shard. `max_wal_buffer_size=0` switches the size trigger off; a duration of
    None switches its timer off. A memtable freezes `max_memtable_age_ms` after its first row. `fsync` concerns local paths only.
    A durable put waits `commit_linger_ms` for puts of other threads that share its entry: fewer requests, later answers.
    """

    shard_id: str | uuid.UUID | None = None
    shard_spec_id: int = 0
    durable_write: bool = True
    sync_indexed_write: bool = True
    max_wal_buffer_size: int = 10 * _MIB
    max_wal_flush_interval_ms: int | None = 100
    max_memtable_size: int = 256 * _MIB
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_memtable_age_ms: int | None = DEFAULT_MEMTABLE_AGE_MS
    manifest_scan_batch_size: int = 2
    max_unflushed_memtable_bytes: int = 1024 * _MIB
    backpressure_log_interval_ms: int = 30_000
    async_index_buffer_rows: int = 10_000
    async_index_interval_ms: int = 1_000
    stats_log_interval_ms: int | None = 60_000
    enable_memtable: bool = True
    max_wal_persist_retries: int = 3
    wal_persist_retry_base_delay_ms: int = 50
    fsync: bool = True
    max_entry_bytes: int = 256 * _MIB
    commit_linger_ms: int = 0

    def __post_init__(self) -> None:
        for name in _BOOLEANS:
            check_flag(name, getattr(self, name))
        for name in _AT_LEAST_ONE:
            check_number(name, getattr(self, name), least=1)
        for name in _AT_LEAST_ZERO:
            check_number(name, getattr(self, name))
        check_number("max_entry_bytes", self.max_entry_bytes, least=1, most=_LARGEST_ENTRY_BYTES)
        check_number("commit_linger_ms", self.commit_linger_ms, most=_LONGEST_LINGER_MS)
        for name in _OPTIONAL_DURATIONS:
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=1)
        if self.shard_id is not None:
            object.__setattr__(self, "shard_id", check_shard_id(self.shard_id))

    def replace(self, **changes: Unpack[WriterSettings]) -> WriterConfig:
        """A copy with `changes`; an unknown name is an `InvalidInputError`."""
        unknown = sorted(set(changes) - _FIELDS)
        if unknown:
            raise InvalidInputError(f"unknown writer setting {unknown[0]!r}{suggestion(unknown[0], _FIELDS)}")
        return replace(self, **changes)

    def to_defaults(self) -> dict[str, str]:
        """The string map that a table stores: every tunable, None as "0", never the shard."""
        return {name: _to_text(getattr(self, name)) for name in sorted(_FIELDS - _NEVER_STORED)}

    @classmethod
    def from_defaults(cls, stored: Mapping[str, Any]) -> WriterConfig:
        """Read the settings of a map that a table stores, or that becomes its `writer_defaults`.

        Values are text, as `to_defaults` writes it, or of the setting's own type. Unknown keys are ignored: a user, or
        another implementation, keeps them there.
        """
        known: dict[str, Any] = {
            name: _from_text(name, value) if isinstance(value, str) else value
            for name, value in stored.items()
            if name in _FIELDS - _NEVER_STORED
        }
        return cls(**known)


_FIELDS = frozenset(field.name for field in fields(WriterConfig))
_BOOLEANS = ("durable_write", "sync_indexed_write", "enable_memtable", "fsync")


def _to_text(value: bool | int | None) -> str:
    if value is None:
        return "0"
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _from_text(name: str, text: str) -> bool | int | None:
    if name in _BOOLEANS:
        lowered = text.strip().lower()
        if lowered not in {"true", "false"}:
            raise InvalidInputError(f"stored writer default {name}={text!r} is not a boolean")
        return lowered == "true"
    try:
        number = int(text)
    except ValueError:
        raise InvalidInputError(f"stored writer default {name}={text!r} is not an integer") from None
    return None if number == 0 and name in _OPTIONAL_DURATIONS else number
