"""The life of a table with everything beside plain rows: two shards, a merge by sequence, blobs, an index, roll-ups.

Owns `RichLife`, the second life that meets faults. What the canonical life does is not done again; together the two make every
call that a store has. A write with an old sequence is made on purpose: nobody may see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import newest_manifests
from lance_memwal.process.cache import CACHE
from lance_memwal.sstable.rolling import roll_up
from tests.kit.table_life import CanonicalLife, Row

__all__ = ["RichLife"]

_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    ]
)
_SHARDS: Final = mw.Bucket("id", 2)
_ROLLED: Final = 8  # generations, which is what a roll-up has at least
_WORDS: Final = ("amber", "basalt", "cedar")


class RichLife(CanonicalLife):
    """As `CanonicalLife`; `value` is the sequence that rows go by, and the image of a row follows from it."""

    _sharding = _SHARDS

    def _create(self) -> mw.Table:
        return mw.create_table(
            self._location, _SCHEMA, primary_key="id", sharding=_SHARDS, merge=mw.LastWrite("value"), exist_ok=True
        )

    def _row(self, key: int, value: int, note: str | None) -> dict[str, Any]:
        return super()._row(key, value, note) | {"image": _image(key, value)}

    def share(self) -> None:
        """The first rows come from a writer that others could share the table with."""
        self._writer = self._again("share", lambda: self.table.writer(shared=True, compaction=None))
        self._writers.append(self._writer)
        self._put(3, 6, note="shared")
        self.close()

    def index(self) -> None:
        self._upkeep(lambda: self.table.create_index(mw.FtsIndex("note")))

    def write(self) -> None:
        self._put(1, 2, 3, 4, note="amber")
        self._put(2, 5, note="basalt")

    def change(self) -> None:
        value = next(self._values)
        if self._write([1], lambda _: None, lambda: self.writer.delete([1], sequence=value)):
            self._write([1], lambda row: row, lambda: self.writer.put([self._row(1, 0, "too late")]))
        stale = [self._row(2, 0, "too late")]
        self._write([2], lambda row: row or (0, "too late"), lambda: self.writer.put(stale))

    def flush_often(self) -> None:
        """Generations of one shard, enough for a roll-up."""
        keys = pa.record_batch({"id": pa.array(range(20, 60), pa.int64())})
        _, part = next(iter(self.table.sharding.route(keys, _SCHEMA)))
        for number in range(_ROLLED):
            self._put(part.column(0)[number].as_py(), note=_WORDS[number % len(_WORDS)])
            self.flush()

    def roll_up(self) -> None:
        self._upkeep(self._roll_up)

    def _roll_up(self) -> None:
        base = BaseTable.need(self._location)
        for manifest in newest_manifests(self._location):
            roll_up(self._location, manifest, base.columns, few_generations=0)

    def read_rolled(self) -> None:
        """Rows, and keys, of files that nobody has opened yet."""
        for read in (self._scan, lambda: self._look(2), lambda: self._look(99)):
            CACHE.clear()
            self._again("read", read)

    def search(self) -> None:
        self._put(7, note=_WORDS[-1])  # in memory still
        self._again("search", lambda: self._compare_search(self._scan()))

    def _look_closer(self, scanned: pa.Table, rows: Mapping[int, Row]) -> None:
        for row in scanned.select(["id", "value", "image"]).to_pylist():
            if row["image"]["size"] != len(_image(row["id"], row["value"])):
                self.oracle.broken.append(f"I2: the blob of {row} has another size")

    def _compare_search(self, rows: Mapping[int, Row]) -> None:
        for word in _WORDS:
            found = self.table.search(text=word, column="note", k=100, columns=["id"]).column("id").to_pylist()
            if sorted(found) != sorted(key for key, (_, note) in rows.items() if note == word):
                self.oracle.broken.append(f"I7: a search for {word} finds {sorted(found)}, the rows are {rows}")

    def _judge_more(self, rows: Mapping[int, Row]) -> None:
        self._compare_search(rows)
        for key, (value, _) in rows.items():
            file = self.table.get_blob(key, "image")
            if file is None or file.read() != _image(key, value):
                self.oracle.broken.append(f"I2: the blob of {key} is not that of {value}")

    steps: ClassVar = (
        CanonicalLife.make,
        share,
        index,
        write,
        CanonicalLife.flush,
        change,
        flush_often,
        roll_up,
        read_rolled,
        CanonicalLife.keep,
        CanonicalLife.consume,
        search,
        CanonicalLife.compact,
        CanonicalLife.collect,
        CanonicalLife.take_over,
        CanonicalLife.look_back,
        CanonicalLife.maintain,
        search,
        CanonicalLife.close,
    )


def _image(key: int, value: int) -> bytes:
    return bytes([key % 251, value % 251]) * (3 + key % 5 + value)
