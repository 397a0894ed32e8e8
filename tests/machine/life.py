"""One table, its writer, and the model that it must agree with.

Owns `MachineLife`: how the table is made, who writes it, and how answers are compared. What happens to it is in the step modules.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import lance
import lancedb
import pyarrow as pa
from lance.blob import BlobType, blob_array

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from tests.kit.tables import Outside, compact_everything
from tests.machine.model import Model, Row, Storage
from tests.machine.setup import BLOB, KEYS, Configuration, Kind, added_values


def in_order(rows: Iterable[Row], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own, so that equal ones compare equal; blobs by their sizes, which is what reads show."""
    return sorted((tuple(_shown(row[name]) for name in names) for row in rows), key=repr)


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return len(value)
    return value["size"] if isinstance(value, dict) else value


class MachineLife:
    """A table and its model. `elsewhere` is a process that reads."""

    def __init__(self, kind: Kind, configuration: Configuration, numbers: Sequence[int], elsewhere: Outside) -> None:
        self.kind, self.configuration, self.elsewhere = kind, configuration, elsewhere
        self.directory = tempfile.mkdtemp(prefix="memwal-machine-")
        self.uri = os.path.join(self.directory, "t.lance")
        self.model = Model(kind.names, kind.schema.names)
        self.version = self.added = self.checkpoints = 0
        self.writer: mw.TableWriter | None = None
        self.zombies: list[mw.TableWriter] = []
        self.indexes: set[str] = set()
        self.told: dict[str, list[Any]] = {}  # what the last step answered
        self.fresh: set[int] = set()  # numbers of keys that are certainly above the base table
        self._cache_bytes = CACHE.limit_bytes
        if configuration.cache_bytes is not None:
            mw.set_cache_bytes(configuration.cache_bytes)
        self.table = self._make(self.rows(numbers))
        self._index()

    def _make(self, rows: list[Row]) -> mw.Table:
        kind, configuration = self.kind, self.configuration
        data = pa.Table.from_pylist(rows, schema=kind.schema)
        choices: dict[str, Any] = {
            "primary_key": kind.names or None,
            "sharding": configuration.sharding(kind),
            "merge": kind.merge,
            "maintained_indexes": configuration.maintained,
            # what the peers' writers would refuse is not stored
            "writer_defaults": {"fsync": False, "stats_log_interval_ms": None},
        }
        if configuration.made == "created":
            table = mw.create_table(self.uri, data, **choices)
        elif configuration.made == "enabled":
            table = mw.enable(lance.write_dataset(data, self.uri).uri, **choices)
        else:
            table = mw.from_lancedb(lancedb.connect(self.directory).create_table("t", data), **choices)
        self.model.write(rows)
        self.model.noted |= {key: row["q"] for key, row in self.model.rows.items()}
        return table

    def _index(self) -> None:
        if self.configuration.indexes:
            self.make_index("by_v")
            self.make_index("by_t")
            if self.model.rows:
                self.make_index("by_vec")

    def make_index(self, name: str) -> None:
        if name == "by_v":
            made = self.table.indexes.create(mw.BTreeIndex("v", name=name))
        elif name == "by_t":
            made = self.table.indexes.create(mw.FtsIndex("t", name=name))
        else:
            made = self.table.indexes.create("vec", "IVF_FLAT", name=name, num_partitions=1, metric="l2")
        assert (made.name, made.columns) == (name, (name.removeprefix("by_"),))
        self.indexes.add(name)

    def make_anew(self, numbers: Sequence[int]) -> None:
        self.model = Model(self.kind.names, self.kind.schema.names)
        self.indexes.clear()
        self.fresh.clear()
        self.table = self._make(self.rows(numbers))
        self._index()

    # ------------------------------------------------------------------------------------------------------------ writing

    def rows(self, numbers: Iterable[int]) -> list[Row]:
        """New versions of the rows of these keys, with all columns of now."""
        made = []
        for number in numbers:
            self.version += 1
            made.append(self.kind.row(number, self.version) | added_values(self.model.columns, self.version))
        return made

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        schema = self.table.schema
        if not (self.kind.has_blobs and isinstance(schema.field(BLOB).type, BlobType)):
            return pa.Table.from_pylist(list(rows), schema=schema)
        at = schema.names.index(BLOB)
        blobs = blob_array([row.get(BLOB) for row in rows])
        return pa.Table.from_pylist(list(rows), schema=schema.remove(at)).add_column(at, BLOB, blobs)

    def open(self, **options: Any) -> mw.TableWriter:
        """The writer that is open, or a new one."""
        if self.writer is None:
            self.writer = self.new_writer(**options)
        return self.writer

    def new_writer(self, table: mw.Table | None = None, **options: Any) -> mw.TableWriter:
        """Another writer, by this table or by another handle of it, as the configuration has it."""
        configuration = self.configuration
        return (table or self.table).writer(
            compaction=configuration.compaction, **{**configuration.settings, **options}
        )

    def leave(self) -> None:
        """Let nobody own a shard: who shares waits a minute for a writer that went without a word."""
        self.stop()
        for shard in self.table.shards():
            self.table.shard_writer(shard.shard_id).close()

    def stop(self, how: str = "close") -> None:
        """End the writer, if there is one. What storage does not have yet would be lost by a crash, so it is no crash then."""
        writer, self.writer = self.writer, None
        if writer is not None:
            getattr(writer, how if self.configuration.durable else "close")()

    def make_durable(self) -> None:
        """Let storage have what was written."""
        if self.writer is not None and not self.configuration.durable:
            self.writer.flush()

    def put_in_model(self, rows: Sequence[Row]) -> int:
        """What a put of whole rows does by the merge of the table; returns how many rows it keeps out."""
        self.fresh |= {number for number in range(KEYS) if self.kind.key_of(number) in self._keys_of(rows)}
        if isinstance(self.kind.merge, mw.FirstRow):
            return len(self.model.write(rows, lambda _, old: old is None))
        if isinstance(self.kind.merge, mw.LastWrite):
            return len(self.model.write(rows, self._is_later))
        return len(self.model.write(rows))

    def _is_later(self, row: Row, _: Row | None) -> bool:
        key = self.model.key_of(row)
        if row["q"] < self.model.noted.get(key, row["q"]):
            return False
        self.model.noted[key] = row["q"]
        return True

    def _keys_of(self, rows: Sequence[Row]) -> set[Any]:
        return {tuple(row[name] for name in self.kind.names) for row in rows} if self.kind.key else set()

    def named(self, numbers: Iterable[int]) -> list[Any]:
        """The keys of these numbers as a caller gives them: a key of one column is its value."""
        keys = [self.kind.key_of(number) for number in numbers]
        return keys if len(self.kind.key) > 1 else [key[0] for key in keys]

    # -------------------------------------------------------------------------------------------------------- collecting

    def storage(self) -> Storage:
        """What storage has come to."""
        shards = mw.open_table(self.uri).shards()
        found = {shard.shard_id: mw.ShardManifestStore(self.uri, shard.shard_id).read_latest() for shard in shards}
        versions = {shard_id: manifest.version for shard_id, manifest in found.items() if manifest is not None}
        return lance.dataset(self.uri).version, versions

    def collected(self) -> None:
        """A step has just collected: log entries, SSTables, or versions of the base table."""
        self.model.collected(self.storage())

    # ---------------------------------------------------------------------------------------------------------- comparing

    def tell(self, what: str, answer: Any) -> None:
        """Note an answer that must be the same in every configuration that gives it."""
        self.told.setdefault(what, []).append(answer)

    def same_transactions(self, found: Mapping[str, int], shard_id: str, *, whole: bool = True) -> None:
        """A shard knows those that were written to it; writers that share have others among themselves."""
        noted = {app: version for app, version in found.items() if not app.startswith("memwal:")}
        wanted = self.model.transactions.get(shard_id, {})
        assert noted == wanted if whole else noted.items() <= wanted.items()

    def same(self, found: pa.Table, rows: Iterable[Row], names: Sequence[str] | None = None) -> None:
        """The rows that were found are these, in any order."""
        names = self.model.columns if names is None else names
        assert in_order(found.to_pylist(), names) == in_order(rows, names)

    def check(self) -> None:
        found = self.table.scan().to_table()
        self.tell("the table", in_order(found.to_pylist(), self.model.columns))
        self.same(found, self.model.rows.values())

    def close(self) -> None:
        """The end: everybody agrees, in this process, in another one, in the base table and after another open."""
        try:
            self.make_durable()
            self.same(self.elsewhere.ask("scan", self.uri), self.model.rows.values())
            self.stop()
            for writer in self.zombies:
                writer.abort()
            compact_everything(self.table)
            self.same(lance.dataset(self.uri).to_table(), self.model.rows.values())
            self.same(mw.open_table(self.uri).scan(consistency="flushed").to_table(), self.model.rows.values())
            report = self.table.verify()
            assert report.ok, report.problems
        finally:
            mw.set_cache_bytes(self._cache_bytes)
            self.table.close()
            shutil.rmtree(self.directory, ignore_errors=True)
