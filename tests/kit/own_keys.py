"""One thread's writes to keys of its own, and whether a read shows exactly what it wrote last."""

import random
from dataclasses import dataclass, field

import pyarrow as pa

from lance_memwal import ShardWriter
from tests.harness.oracle import Row
from tests.harness.shard_audit import TableKind

KIND = TableKind("integer")
KEYS_PER_THREAD = 12


@dataclass
class Findings:
    """What went wrong, and how much was looked at."""

    reads: int = 0
    missing: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    undead: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        return [*self.missing, *self.stale, *self.undead, *self.damaged]

    def judge(self, where: str, written: dict[int, int | None], rows: list[Row]) -> None:
        """Compare `rows` with what was `written` (None: deleted) to these keys."""
        self.reads += 1
        seen = {row.key: row.number for row in rows if row.key in written}
        self.damaged += [f"{where}: {row}" for row in rows if not row.intact]
        self.damaged += [f"{where}: key {k} twice" for k in seen if sum(row.key == k for row in rows) > 1]
        for key, number in written.items():
            if number is None and key in seen:
                self.undead.append(f"{where}: key {key} was deleted, is {seen[key]}")
            elif number is not None and key not in seen:
                self.missing.append(f"{where}: key {key} was {number}, is gone")
            elif number is not None and seen[key] != number:
                self.stale.append(f"{where}: key {key} was {number}, is {seen[key]}")


class Scribe:
    """Puts and deletes at random, and reads its own keys after each, by scan and by key."""

    def __init__(self, writer: ShardWriter, thread: int, seed: int) -> None:
        self._writer = writer
        self._random = random.Random(seed * 64 + thread)
        self._keys = range(thread * KEYS_PER_THREAD, (thread + 1) * KEYS_PER_THREAD)
        self._number = thread * 1_000_000
        self._written: dict[int, int | None] = {}
        self.findings = Findings()

    def write_and_read(self) -> None:
        """One acknowledged write, then one scan and one get."""
        self._number += 1
        keys = self._random.sample(self._keys, self._random.choice((1, 1, 2, 4)))
        if self._random.random() < 0.2:
            self._writer.delete(KIND.keys_of(keys))
            self._written |= dict.fromkeys(keys)
        else:
            self._writer.put(KIND.batch_of(keys, self._number))
            self._written |= dict.fromkeys(keys, self._number)
        where = f"write {self._number}"
        self.findings.judge(f"scan after {where}", self._written, KIND.rows_of(self._writer.scan().to_table()))
        one = self._writer.get(keys[0])
        found = [] if one is None else KIND.rows_of(pa.Table.from_pylist([one], schema=KIND.schema))
        self.findings.judge(f"get after {where}", {keys[0]: self._written[keys[0]]}, found)
