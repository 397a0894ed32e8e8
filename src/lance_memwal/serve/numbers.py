"""What the owner of a shard says of its memory and its puts.

Owns `OwnerNumbers`. Invariant: it holds numbers only, no row and no key; numbers that a newer owner tells are left out, and
those that an older one does not tell are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lance_memwal.shard_writer import ShardWriter


@dataclass(frozen=True, slots=True)
class OwnerNumbers:
    """One writer now: what it holds in memory, and its puts since it was opened.

    `held_bytes` of at most `limit_bytes` are in memory: at the limit puts wait for a flush. `waits` did so far, for
    `wait_seconds` in all. Percentiles are in seconds.
    """

    memtable_rows: int = 0
    memtable_bytes: int = 0
    frozen_memtables: int = 0
    frozen_bytes: int = 0
    held_bytes: int = 0
    limit_bytes: int = 0
    puts: int = 0
    put_p50: float = 0.0
    put_p99: float = 0.0
    waits: int = 0
    wait_seconds: float = 0.0

    @property
    def pressure(self) -> float:
        """How full the memory is: 1.0 is where puts wait."""
        return self.held_bytes / self.limit_bytes if self.limit_bytes else 0.0

    def told(self) -> dict[str, int | float]:
        """The numbers by name, as they are sent."""
        return asdict(self)

    @classmethod
    def heard(cls, told: Mapping[str, Any]) -> OwnerNumbers:
        """The numbers that were sent."""
        known = {field.name for field in fields(cls)}
        numbers: dict[str, Any] = {
            name: value for name, value in told.items() if name in known and isinstance(value, int | float)
        }
        return cls(**numbers)


def numbers_of(writer: ShardWriter) -> OwnerNumbers:
    """The numbers of a writer of this process."""
    memory = writer.memtable_stats() if writer.config.enable_memtable else None
    counted, waited = writer.stats(), writer.backpressure_stats()
    held = 0 if memory is None else memory.estimated_size + memory.frozen_bytes
    return OwnerNumbers(
        memtable_rows=0 if memory is None else memory.row_count,
        memtable_bytes=0 if memory is None else memory.estimated_size,
        frozen_memtables=0 if memory is None else memory.frozen_count,
        frozen_bytes=0 if memory is None else memory.frozen_bytes,
        held_bytes=held,
        limit_bytes=writer.config.max_unflushed_memtable_bytes,
        puts=counted.put_count,
        put_p50=counted.put_latency.p50 or 0.0,
        put_p99=counted.put_latency.p99 or 0.0,
        waits=waited.total_count,
        wait_seconds=waited.total_wait_ms / 1000,
    )
