"""The systems that work on one table, behind one set of verbs: ours, pylance, LanceDB.

A `System` writes, reads, searches and looks after a table with a vector and a text column. What it cannot do raises
`CannotError` with the reason, after the attempt itself was seen to fail where there is something to attempt: the day a
system learns it, the matrix says so.
"""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Protocol

import lance
import lance.mem_wal
import lancedb
import numpy as np
import pyarrow as pa
from lance.mem_wal import CompactedSsTable, LsmScanner, LsmVectorSearchPlanner

import lance_memwal as mw
from tests.harness.shard_audit import peer_snapshot

DIM = 8
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("v", pa.list_(pa.float32(), DIM)),
        pa.field("t", pa.string()),
    ]
)


class CannotError(Exception):
    """What a system does not offer, and why."""


def rows_for(numbers: range, seed: int = 0) -> pa.Table:
    """Rows with vectors of their own and one word that only they have, which names `seed`."""
    vectors = np.random.default_rng([seed, numbers.start]).normal(size=(len(numbers), DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    texts = [f"word{number}x{seed} of many" for number in numbers]
    return pa.table([pa.array(numbers, pa.int64()), column, pa.array(texts)], schema=SCHEMA)


def indexed_table(place: Path, base_rows: int = 300) -> mw.Table:
    """A table with a vector and a text index, both maintained."""
    uri = str(place / "t.lance")
    dataset = lance.write_dataset(rows_for(range(base_rows)), uri)
    dataset.create_index("v", "IVF_FLAT", name="v_ann", num_partitions=2)
    dataset.create_scalar_index("t", "INVERTED", name="t_fts")
    return mw.enable(uri, maintained_indexes=["v_ann", "t_fts"], writer_defaults={"fsync": False})


class System(Protocol):
    """One system at work on the table in `place`; it may hold an open writer."""

    def __init__(self, place: Path) -> None: ...

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Upsert rows, durable; takes the shard over if another system owns it."""

    @abstractmethod
    def end_writing(self) -> None:
        """Close the writer, which flushes."""

    @abstractmethod
    def rows(self) -> dict[int, str]:
        """Every live row that it sees."""

    @abstractmethod
    def nearest(self, vector: Any) -> int:
        """The row with the nearest vector."""

    @abstractmethod
    def matching(self, word: str) -> int:
        """The best row for a word."""

    @abstractmethod
    def compact(self) -> None:
        """Fold published generations into the base table."""

    @abstractmethod
    def maintain(self) -> None:
        """Bring indexes up to date, and collect what it can."""


def _as_dict(rows: pa.Table) -> dict[int, str]:
    return dict(zip(rows["id"].to_pylist(), rows["t"].to_pylist(), strict=True))


class Ours(System):
    def __init__(self, place: Path) -> None:
        self._table = mw.open_table(str(place / "t.lance"))
        self._writer: mw.TableWriter | None = None

    def write(self, rows: pa.Table) -> None:
        self._writer = self._writer or self._table.writer(compaction=None)
        self._writer.put(rows)

    def end_writing(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def rows(self) -> dict[int, str]:
        return _as_dict(self._table.scan().to_table())

    def nearest(self, vector: Any) -> int:
        return int(self._table.search(vector=vector, column="v", k=1)["id"][0].as_py())

    def matching(self, word: str) -> int:
        return int(self._table.search(text=word, column="t", k=1)["id"][0].as_py())

    def compact(self) -> None:
        self._table.compact()

    def maintain(self) -> None:
        self._table.maintain()
        self._table.gc(grace_seconds=0)


class Pylance(System):
    """The peer: pylance's own MemWAL."""

    def __init__(self, place: Path) -> None:
        self._uri = str(place / "t.lance")
        self._shard = mw.shard_id_for(mw.Unsharded(), None)
        self._writer: Any = None

    @property
    def _dataset(self) -> Any:
        return lance.dataset(self._uri)

    def write(self, rows: pa.Table) -> None:
        fast = {"durable_write": True, "max_wal_buffer_size": 1}
        self._writer = self._writer or self._dataset.mem_wal_writer(self._shard, **fast)
        self._writer.put(rows)

    def end_writing(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def rows(self) -> dict[int, str]:
        if self._writer is not None:
            return _as_dict(self._writer.lsm_scanner().to_table())
        return _as_dict(LsmScanner.from_snapshots(self._dataset, self._snapshots()).to_table())

    def _snapshots(self) -> list[Any]:
        return [peer_snapshot(self._uri, self._shard)]

    def nearest(self, vector: Any) -> int:
        if self._writer is not None:
            raise CannotError("its vector search takes SSTables and the base table, and no memtable")
        planner = LsmVectorSearchPlanner(self._dataset, self._snapshots(), "v")
        found = planner.plan_search(pa.array(vector, pa.float32()), k=1, columns=["id"]).to_table()
        return int(found["id"][0].as_py())

    def matching(self, word: str) -> int:
        assert not any("Text" in name or "Fts" in name for name in dir(lance.mem_wal)), f"search for {word} by it now"
        raise CannotError("its Python API has no text search over SSTables")

    def compact(self) -> None:
        """As its documentation has it: merge the rows of the SSTables, and mark these in the same commit."""
        manifest = mw.ShardManifestStore(self._uri, self._shard).read_latest()
        assert manifest is not None
        for sstable in sorted(manifest.sstables, key=lambda item: item.generation):
            rows = lance.dataset(f"{self._uri}/_mem_wal/{self._shard}/{sstable.path}").to_table(columns=SCHEMA.names)
            builder = self._dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            builder.mark_sstables_as_compacted([CompactedSsTable(self._shard, sstable.generation)]).execute(rows)

    def maintain(self) -> None:
        self._dataset.optimize.optimize_indices()


class Lancedb(System):
    """LanceDB, with the Lance that it embeds."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._connected: Any = None
        self._writes = False

    @property
    def _table(self) -> Any:
        """The connection that wrote; a reader connects anew, as a service that is started later."""
        return self._connected if self._writes else lancedb.connect(str(self._place)).open_table("t")

    def write(self, rows: pa.Table) -> None:
        if not self._writes:
            self._connected = lancedb.connect(str(self._place)).open_table("t")
            self._writes = True
        self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def end_writing(self) -> None:
        if self._writes:
            self._connected.close_lsm_writers()
        self._writes = False

    def rows(self) -> dict[int, str]:
        return _as_dict(self._table.search().limit(10_000).to_arrow())

    def nearest(self, vector: Any) -> int:
        return int(self._table.search(vector, vector_column_name="v").limit(1).to_arrow()["id"][0].as_py())

    def matching(self, word: str) -> int:
        found = self._table.search(word, query_type="fts", fts_columns="t").limit(1).to_arrow()
        return int(found["id"][0].as_py()) if found.num_rows else -1

    def compact(self) -> None:
        try:
            self._table.compact_lsm()
        except NotImplementedError as error:
            raise CannotError(f"it folds generations on its service only: {error}") from None

    def maintain(self) -> None:
        self._table.optimize()
