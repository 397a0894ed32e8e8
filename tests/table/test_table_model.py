"""Whatever happens to a table, `scan`, `get` of every key and `lookup` show what a dictionary would.

A hypothesis state machine puts, deletes, seals, flushes, closes, crashes, takes over, compacts (through pylance by hand,
and by the table itself), collects, and changes the base table behind memwal's back. After every step the scan is
compared; a reader in a second process is asked as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.tables import FAST, Outside, compact_shard, trim_shard, upsert_base

_NUMBERS = 14
_ROWS = st.lists(st.integers(0, _NUMBERS - 1), min_size=1, max_size=6)
_FILTERS = [None, "v % 2 = 0", "v > 40", "s is null", "s = 'even'", "v between 10 and 60 and s is not null"]
_SETTINGS = settings(
    max_examples=scaled(ci=8, prove=200),
    stateful_step_count=scaled(ci=25, prove=60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Kind:
    """A kind of table: its key columns (none: append-only) and its sharding."""

    key: tuple[pa.Field, ...]
    sharding: mw.Unsharded | mw.Bucket

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.key]

    @property
    def schema(self) -> pa.Schema:
        number = [] if self.key else [pa.field("n", pa.int64())]
        return pa.schema([*self.key, *number, pa.field("v", pa.int64()), pa.field("s", pa.string())])

    def key_of(self, number: int) -> tuple[Any, ...]:
        """The key that belongs to a small number."""
        if len(self.key) == 2:
            return (number % 3 - 1, f"b{number // 3}")
        if not self.key:
            return (number,)
        return (f"ключ-{number}" if pa.types.is_string(self.key[0].type) else number * 1_000_003 - 5_000_000,)

    def row(self, number: int, version: int) -> dict[str, Any]:
        names = self.names or ["n"]
        row = dict(zip(names, self.key_of(number), strict=True))
        return row | {"v": version, "s": [None, "odd", "even"][version % 3]}


def _key(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


KINDS = {
    "one integer key, one shard": Kind((_key("id", pa.int64()),), mw.Unsharded()),
    "a string key, two shards": Kind((_key("name", pa.string()),), mw.Bucket("name", 2)),
    "a composite key, two shards": Kind((_key("a", pa.int32()), _key("b", pa.string())), mw.Bucket("b", 2)),
}
APPEND_KINDS = {
    "append-only, one shard": Kind((), mw.Unsharded()),
    "append-only, two shards": Kind((), mw.Bucket("n", 2)),
}


class TableMachine(RuleBasedStateMachine):
    """What every kind of table goes through."""

    def __init__(self, kind: Kind, outside: Outside) -> None:
        super().__init__()
        self.kind = kind
        self.outside = outside
        self.directory = tempfile.mkdtemp(prefix="memwal-model-")
        self.uri = os.path.join(self.directory, "table")
        self.version = 0
        self.writer: mw.TableWriter | None = None
        self.zombies: list[mw.TableWriter] = []

    @initialize(numbers=st.lists(st.integers(0, _NUMBERS - 1), unique=True, max_size=6))
    def create(self, numbers: list[int]) -> None:
        rows = self.rows(numbers)
        table = pa.Table.from_pylist(rows, schema=self.kind.schema)
        self.table = mw.create_table(
            self.uri, table, primary_key=self.kind.names or None, sharding=self.kind.sharding, writer_defaults=FAST
        )
        self.put_in_model(rows)

    def rows(self, numbers: list[int]) -> list[dict[str, Any]]:
        """New versions of these rows."""
        made = []
        for number in numbers:
            self.version += 1
            made.append(self.kind.row(number, self.version))
        return made

    def open_writer(self, **options: Any) -> mw.TableWriter:
        if self.writer is None:
            self.writer = self.table.writer(**options)
        return self.writer

    def stop(self, how: str) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            getattr(writer, how)()

    # ------------------------------------------------------------------------------------------------------- the model

    def put_in_model(self, rows: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    def expected(self) -> Counter[tuple[Any, ...]]:
        raise NotImplementedError

    def as_counter(self, table: pa.Table) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in self.kind.schema.names) for row in table.to_pylist())

    # ------------------------------------------------------------------------------------------------------- the rules

    @rule(
        numbers=_ROWS, parts=st.integers(1, 3), rows=st.sampled_from([3, 9, 1_000]), batches=st.sampled_from([2, 500])
    )
    def put(self, numbers: list[int], parts: int, rows: int, batches: int) -> None:
        made = self.rows(numbers)
        table = pa.Table.from_pylist(made, schema=self.kind.schema)
        size = -(-len(made) // parts)
        writer = self.open_writer(max_memtable_rows=rows, max_memtable_batches=batches)
        writer.put(table.to_batches(max_chunksize=size))
        self.put_in_model(made)

    @rule()
    @precondition(lambda self: self.writer is not None)
    def seal(self) -> None:
        for shard in self.open_writer().shard_writers.values():
            shard.force_seal_active()

    @rule()
    @precondition(lambda self: self.writer is not None)
    def flush(self) -> None:
        self.open_writer().flush()

    @rule(how=st.sampled_from(["close", "abort"]))
    @precondition(lambda self: self.writer is not None)
    def close_or_crash(self, how: str) -> None:
        self.stop(how)

    @rule(numbers=_ROWS)
    @precondition(lambda self: self.writer is not None)
    def take_over(self, numbers: list[int]) -> None:
        """Another writer claims the shards; the old one lives on, and its memtables must not be believed."""
        old = self.open_writer()
        made = self.rows(numbers)
        successor = mw.open_table(self.uri).writer()
        successor.put(made)
        self.put_in_model(made)
        for shard_id in successor.shard_writers.keys() & old.shard_writers.keys():
            with pytest.raises(mw.FencedError):
                old.shard_writers[shard_id].put([self.kind.row(0, -1)])
        for shard_id in old.shard_writers.keys() - successor.shard_writers.keys():
            old.shard_writers[shard_id].close()
        self.zombies.append(old)
        self.writer = successor

    @rule(data=st.data(), generations=st.sampled_from([1, None]), trim=st.booleans())
    def compact(self, data: st.DataObject, generations: int | None, trim: bool) -> None:
        shards = [shard.shard_id for shard in self.table.shards()]
        if shards:
            compact_shard(self.uri, data.draw(st.sampled_from(shards)), generations=generations, trim=trim)
            self.compacted()

    @rule(max_generations=st.sampled_from([1, None]), collect=st.booleans())
    def compact_and_collect(self, max_generations: int | None, collect: bool) -> None:
        """The table's own compaction, and collection that waits for nobody."""
        self.table.compact(max_generations=max_generations)
        self.compacted()
        if collect:
            self.table.gc(grace_seconds=0)

    def compacted(self) -> None:
        """Some generations are in the base table now."""

    @rule()
    def trim(self) -> None:
        for shard in self.table.shards():
            trim_shard(self.uri, shard.shard_id)

    def settle(self) -> None:
        """Everything is in the base table; nothing fresh is left above it."""
        if self.writer is not None:
            self.writer.flush()
        for shard in self.table.shards():
            if self.writer is None or shard.shard_id not in self.writer.shard_writers:
                self.table.shard_writer(shard.shard_id).close()
            compact_shard(self.uri, shard.shard_id, trim=False)
        self.compacted()

    @rule()
    def read_again_from_a_new_handle(self) -> None:
        self.table = mw.open_table(self.uri)

    @rule(where=st.sampled_from(_FILTERS), outside=st.booleans())
    def filtered(self, where: str | None, outside: bool) -> None:
        found = (
            self.outside.ask("scan", self.uri, filter=where) if outside else self.table.scan(filter=where).to_table()
        )
        assert self.as_counter(found) == self.matching(where)
        assert self.table.count_rows(where) == sum(self.matching(where).values())

    @rule(where=st.sampled_from(_FILTERS), limit=st.integers(0, 9), offset=st.integers(0, 9))
    def limited(self, where: str | None, limit: int, offset: int) -> None:
        found = self.as_counter(self.table.scan(filter=where, limit=limit, offset=offset).to_table())
        everything = self.matching(where)
        assert found <= everything
        assert sum(found.values()) == min(limit, max(0, sum(everything.values()) - offset))

    @rule(columns=st.permutations(["v", "s"]), count=st.integers(0, 2))
    def projected(self, columns: list[str], count: int) -> None:
        chosen = columns[:count]
        found = self.table.scan(columns=chosen).to_table()
        assert found.schema.names == chosen
        at = [self.kind.schema.names.index(name) for name in chosen]
        wanted = Counter(tuple(row[i] for i in at) for row in self.expected().elements())
        assert found.num_rows == sum(wanted.values())
        if chosen:
            assert Counter(tuple(row.values()) for row in found.to_pylist()) == wanted

    def matching(self, where: str | None) -> Counter[tuple[Any, ...]]:
        names = self.kind.schema.names
        at_v, at_s = names.index("v"), names.index("s")
        tests: dict[str | None, Any] = {
            None: lambda v, s: True,
            "v % 2 = 0": lambda v, s: v % 2 == 0,
            "v > 40": lambda v, s: v > 40,
            "s is null": lambda v, s: s is None,
            "s = 'even'": lambda v, s: s == "even",
            "v between 10 and 60 and s is not null": lambda v, s: 10 <= v <= 60 and s is not None,
        }
        return Counter({row: n for row, n in self.expected().items() if tests[where](row[at_v], row[at_s])})

    @invariant()
    def a_scan_shows_the_model(self) -> None:
        if hasattr(self, "table"):
            assert self.as_counter(self.table.scan().to_table()) == self.expected()

    def teardown(self) -> None:
        if hasattr(self, "table"):
            found = self.outside.ask("scan", self.uri)
            assert self.as_counter(found) == self.expected()
        self.stop("close")
        for writer in self.zombies:
            writer.abort()
        if hasattr(self, "table"):
            for shard in self.table.shards():
                self.table.shard_writer(shard.shard_id).close()
            assert self.as_counter(mw.open_table(self.uri).scan(consistency="flushed").to_table()) == self.expected()
        shutil.rmtree(self.directory)


class KeyedMachine(TableMachine):
    """A table with a primary key: the newest row of a key wins."""

    def __init__(self, kind: Kind, outside: Outside) -> None:
        super().__init__(kind, outside)
        self.model: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.fresh: set[int] = set()  # what is certainly above the base table

    def compacted(self) -> None:
        self.fresh.clear()

    def key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.kind.names)

    def put_in_model(self, rows: list[dict[str, Any]]) -> None:
        self.model |= {self.key(row): row for row in rows}

    def expected(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in self.model.values())

    @rule(numbers=_ROWS)
    def delete(self, numbers: list[int]) -> None:
        keys = [self.kind.key_of(number) for number in numbers]
        self.open_writer().delete(keys)
        self.fresh |= set(numbers)
        for key in keys:
            self.model.pop(key, None)

    @rule(numbers=_ROWS)
    def rewrite_known(self, numbers: list[int]) -> None:
        """A put whose keys are certainly above the base table from now on."""
        rows = self.rows(numbers)
        self.open_writer().put(rows)
        self.put_in_model(rows)
        self.fresh |= set(numbers)

    @rule(numbers=_ROWS)
    def update_the_base_after_compaction(self, numbers: list[int]) -> None:
        """A later change of the base table wins over generations that it holds already, listed or not."""
        self.settle()
        rows = self.rows(sorted(set(numbers)))
        upsert_base(self.uri, pa.Table.from_pylist(rows, schema=self.kind.schema))
        self.put_in_model(rows)

    @rule(data=st.data())
    @precondition(lambda self: self.fresh)
    def update_the_base_below_fresh_rows(self, data: st.DataObject) -> None:
        """A change of the base table below a fresh row, or below a tombstone, is not seen."""
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.fresh)), min_size=1, max_size=3, unique=True))
        rows = [self.kind.row(number, -7) for number in numbers]
        upsert_base(self.uri, pa.Table.from_pylist(rows, schema=self.kind.schema))

    @rule(outside=st.booleans(), columns=st.sampled_from([None, ["v"], ["s", "v"]]))
    def look_up(self, outside: bool, columns: list[str] | None) -> None:
        """`lookup` of every key, `get` of each, and of keys that never were."""
        keys = [self.kind.key_of(number) for number in range(_NUMBERS + 2)]
        wanted = [self.model[key] for key in keys if key in self.model]
        call = partial(self.outside.ask, "lookup", self.uri) if outside else self.table.lookup
        found = call([*keys, keys[0]], columns).to_pylist()
        names = columns or self.kind.schema.names
        assert Counter(tuple(row[name] for name in names) for row in found) == Counter(
            tuple(row[name] for name in names) for row in wanted
        )
        for key in keys:
            row = self.model.get(key)
            expected = None if row is None else {name: row[name] for name in names}
            assert self.table.get(key if len(key) > 1 else key[0], columns) == expected


class AppendMachine(TableMachine):
    """A table without a key: every row counts, as often as it was put."""

    def __init__(self, kind: Kind, outside: Outside) -> None:
        super().__init__(kind, outside)
        self.model: Counter[tuple[Any, ...]] = Counter()

    def put_in_model(self, rows: list[dict[str, Any]]) -> None:
        self.model.update(tuple(row.values()) for row in rows)

    def expected(self) -> Counter[tuple[Any, ...]]:
        return self.model

    @rule(number=st.integers(0, _NUMBERS - 1), times=st.integers(2, 4))
    def put_the_same_row_again(self, number: int, times: int) -> None:
        rows = [self.kind.row(number, 5)] * times
        self.open_writer().put(rows)
        self.put_in_model(rows)

    @rule()
    def settle_everything(self) -> None:
        self.settle()


@pytest.fixture(scope="module")
def reader() -> Iterator[Outside]:
    """One second process for all runs."""
    outside = Outside()
    yield outside
    outside.close()


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=600, prove=0))
@pytest.mark.parametrize("name", KINDS)
def test_scan_get_and_lookup_show_what_a_dictionary_would(name: str, reader: Outside) -> None:
    run_state_machine_as_test(partial(KeyedMachine, KINDS[name], reader), settings=_SETTINGS)


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=600, prove=0))
@pytest.mark.parametrize("name", APPEND_KINDS)
def test_an_append_only_table_shows_every_row_as_often_as_it_was_put(name: str, reader: Outside) -> None:
    run_state_machine_as_test(partial(AppendMachine, APPEND_KINDS[name], reader), settings=_SETTINGS)
