"""A random story: many kinds of writers take turns at one table, and a dict says after every step what it must hold.

A turn is a writer, an appender without one (what the Spark sinks use), or pylance's own writer. Turns end by close, by a
crash, or by a takeover. Rows are whole, partial or conditional, late or not, some too large for an entry; the table has no
merge, or keeps the last or the first. In between it is flushed, compacted and collected.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.table import newest_base
from lance_memwal.write.changes import Terms
from lance_memwal.write.once import OnceAppender
from tests.harness.shard_audit import peer_rows
from tests.kit.writers import SECONDS

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a", pa.int64()),
        pa.field("b", pa.string()),
        pa.field("ts", pa.int64()),
    ]
)
TYPES = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
LAST, FIRST = mw.LastWrite(sequence="ts"), mw.FirstRow()
NEWER = "excluded.a > a"
Row = dict[str, Any]


class Model:
    """What the table must hold: its rows, and the sequences of deletes of keys that have none."""

    def __init__(self, merge: Any) -> None:
        self.merge = merge
        self.rows: dict[int, Row] = {}
        self.gone: dict[int, int] = {}

    def admits(self, row: Row, *, dead: bool) -> bool:
        """Whether the merge lets a row in; a delete is a row."""
        key = row["id"]
        old = self.rows.get(key)
        if self.merge is FIRST:
            return dead or old is None
        if self.merge is LAST and "ts" in row:
            newest = self.gone.get(key) if old is None else old["ts"]
            return newest is None or row["ts"] >= newest
        return True

    def write(self, row: Row) -> None:
        old = self.rows.get(row["id"])
        self.rows[row["id"]] = {"a": None, "b": None, "ts": None, **(old or {}), **row}
        self.gone.pop(row["id"], None)

    def delete(self, row: Row) -> None:
        self.rows.pop(row["id"], None)
        if self.merge is LAST:
            self.gone[row["id"]] = row["ts"]

    def apply(self, rows: list[Row], condition: Callable[[Row, Row | None], bool]) -> list[int]:
        """Bring the model up to date row by row; returns the keys that were kept out. `_tombstone` says what is deleted."""
        refused = []
        for given in rows:
            row = {name: value for name, value in given.items() if name != "_tombstone"}
            dead = bool(given.get("_tombstone"))
            if condition(given, self.rows.get(row["id"])) and self.admits(row, dead=dead):
                (self.delete if dead else self.write)(row)
            else:
                refused.append(row["id"])
        return sorted(refused)


def anything(_row: Row, _old: Row | None) -> bool:
    return True


def only_absent(row: Row, old: Row | None) -> bool:
    return old is None or bool(row.get("_tombstone"))


def newer(row: Row, old: Row | None) -> bool:
    return old is None or (row["a"] is not None and old["a"] is not None and row["a"] > old["a"])


class Play:
    def __init__(self, place: Path, seed: int, other_turns: Sequence[Callable[[Play], None]] = ()) -> None:
        """`other_turns` are had beside those that are here."""
        self.other_turns = other_turns
        self.draw = random.Random(seed)
        merge = self.draw.choice([None, None, LAST, LAST, FIRST])
        self.uri = str(place)
        self.table = mw.create_table(self.uri, SCHEMA, primary_key="id", merge=merge, writer_defaults={"fsync": False})
        self.shard_id = str(self.table.sharding.default_shard())
        self.model = Model(merge)
        self.clock = 0
        self.steps: list[str] = []

    # ------------------------------------------------------------------------------------------------------------ rows

    def ts(self) -> int:
        """A sequence of which no two events of a key have the same, now and then a late one."""
        self.clock += 1
        late = self.draw.randrange(40) if self.draw.random() < 0.4 else 0
        return 1000 * max(0, self.clock - late) + self.clock

    def row(self, names: list[str]) -> Row:
        word = self.draw.choice([None, "x", "y", "long " * 60])
        values = {"a": self.draw.choice([None, 0, 1, 2, 3]), "b": word, "ts": self.ts()}
        return {"id": self.draw.randrange(8), **{name: values[name] for name in names}}

    def whole(self) -> list[Row]:
        return [self.row(["a", "b", "ts"]) for _ in range(self.draw.randrange(1, 6))]

    def parts(self) -> list[Row]:
        """Rows that leave the same columns out; where the last one wins a new key must have its sequence."""
        names = self.draw.choice([["a", "ts"], ["b", "ts"], ["a", "b", "ts"], ["a"], ["b"]])
        rows = [self.row(names) for _ in range(self.draw.randrange(1, 6))]
        if self.model.merge is LAST and "ts" not in names:
            rows = [row for row in rows if row["id"] in self.model.rows]
        return rows

    # ------------------------------------------------------------------------------------------------------------ turns

    def check(self, step: str) -> None:
        self.steps.append(step)
        found = {row["id"]: row for row in self.table.scan().to_table().to_pylist()}
        assert found == self.model.rows, self.steps

    def told(self, result: Any, refused: list[int]) -> None:
        keys = [] if result.rejected is None else sorted(result.rejected.column("id").to_pylist())
        assert keys == refused, self.steps

    def writer_turn(self) -> None:
        limits = {
            "max_memtable_rows": self.draw.choice([4, 100_000]),
            "max_entry_bytes": self.draw.choice([900, 1 << 20]),
        }
        writer = self.table.writer(compaction=None, **limits)
        self.check("writer")
        for _ in range(self.draw.randrange(1, 7)):
            self.write_with(writer)
        end = self.draw.choice(["close", "close", "abort", "takeover"])
        if end != "takeover":
            getattr(writer, end)()
        else:
            rows = [self.row(["a", "b", "ts"])]
            self.told(writer.put(rows), self.model.apply(rows, anything))  # it owns the shard at the latest now
            with self.table.writer(compaction=None) as successor:
                rows = [self.row(["a", "b", "ts"])]
                self.told(successor.put(rows), self.model.apply(rows, anything))
                with pytest.raises(mw.FencedError):
                    writer.delete([1], **({"sequence": self.ts()} if self.model.merge is LAST else {}))
            writer.abort()
        self.check(end)

    def write_with(self, writer: Any) -> None:
        first = self.model.merge is FIRST
        verbs = ["put", "absent", "delete", "flush", "compact"] + ([] if first else ["keep", "newer", "compare"])
        verb = self.draw.choice(verbs)
        if verb == "put":
            rows = self.whole()
            refused = self.model.apply(rows, anything)
            self.told(writer.put(rows), refused)
        elif verb == "absent":
            rows = self.whole()
            refused = self.model.apply(rows, only_absent)
            self.told(writer.put(rows, if_absent=True), refused)
        elif verb == "newer":
            rows = self.whole()
            refused = self.model.apply(rows, newer)
            self.told(writer.put(rows, where=NEWER), refused)
        elif verb == "keep":
            if rows := self.parts():
                refused = self.model.apply(rows, anything)
                self.told(writer.put(rows, missing="keep"), refused)
        elif verb == "compare":
            new = self.row(["a", "b", "ts"])
            old = self.model.rows.get(new["id"])
            refused = self.model.apply([new], anything)
            assert writer.compare_and_set(new["id"], old, new) is (not refused), self.steps
        elif verb == "delete":
            self.delete_with(writer)
        else:
            writer.flush(SECONDS)
            if verb == "compact":
                self.table.compact()
        self.check(verb)

    def delete_with(self, writer: Any) -> None:
        rows = [{"id": key, "ts": self.ts(), "_tombstone": True} for key in self.draw.sample(range(8), 2)]
        keys: Any = [row["id"] for row in rows]
        if self.model.merge is LAST:
            keys = {"id": keys, "ts": [row["ts"] for row in rows]}
        refused = self.model.apply(rows, anything)
        self.told(writer.delete(keys), refused)

    def appender_turn(self) -> None:
        look_up = Reader(NewestBase(newest_base(self.table))).stored_rows
        once = OnceAppender(self.table.location, look_up=look_up, max_entry_bytes=self.draw.choice([None, 400]))
        claim = once.claim(self.shard_id)
        for number in range(self.draw.randrange(1, 5)):
            kind = self.draw.choice(["whole", "whole", "keep", "absent", "newer", "flush", "compact"])
            if kind in ("flush", "compact"):
                once.flush_tail(claim)
                if kind == "compact":
                    self.table.compact()
                self.check(f"appender {kind}")
                continue
            terms, rows, condition = self.terms(kind)
            if not rows:
                continue
            txn = (f"app {len(self.steps)}", number)
            refused = self.model.apply(rows, condition)
            columns = {name: pa.array([row[name] for row in rows], TYPES.get(name, pa.bool_())) for name in rows[0]}
            result = once.append(claim, [pa.record_batch(columns)], txn=txn, terms=terms)
            self.told(result, refused)
            assert result.rows == len(rows) - len(refused)
            if result.rows:
                assert once.append(claim, [pa.record_batch(columns)], txn=txn, terms=terms).skipped
            self.check(f"append {kind}")

    def terms(self, kind: str) -> tuple[Terms, list[Row], Callable[[Row, Row | None], bool]]:
        if kind == "keep" and self.model.merge is not FIRST:
            rows = self.parts()
            with_deletes = self.model.merge is not LAST or (bool(rows) and "ts" in rows[0])
            return Terms("keep"), [self.flagged(row, may_die=with_deletes) for row in rows], anything
        rows = [self.flagged(row, may_die=True) for row in self.whole()]
        if kind == "absent":
            return Terms(if_absent=True), rows, only_absent
        if kind == "newer" and self.model.merge is not FIRST:
            return Terms(where=NEWER), rows, newer
        return Terms(), rows, anything

    def flagged(self, row: Row, *, may_die: bool) -> Row:
        return {**row, "_tombstone": may_die and self.draw.random() < 0.25}

    def peer_turn(self) -> None:
        """pylance knows no merge: what it writes is the newest."""
        fast = {"durable_write": True, "max_wal_buffer_size": 1}
        with lance.dataset(self.uri).mem_wal_writer(self.shard_id, **fast) as writer:
            for _ in range(self.draw.randrange(1, 3)):
                rows = self.whole()
                writer.put(pa.Table.from_pylist(rows, SCHEMA))
                for row in rows:
                    self.model.write(row)
        self.check("peer")

    def run(self, turns: int) -> None:
        own = [self.writer_turn, self.writer_turn, self.appender_turn, self.appender_turn, self.peer_turn]
        others = [partial(turn, self) for turn in self.other_turns]
        for _ in range(turns):
            self.draw.choice([*own, *others])()
            if self.draw.random() < 0.2:
                self.table.gc(grace_seconds=0)
                self.check("gc")
        self.table.shard_writer(self.shard_id).close()  # so that pylance sees the tail, too
        found = {row["id"]: row for row in peer_rows(self.uri, self.shard_id).to_pylist()}
        assert {key: {name: row[name] for name in SCHEMA.names} for key, row in found.items()} == self.model.rows
        assert self.table.verify().ok, self.steps
