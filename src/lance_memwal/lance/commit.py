"""Rows and progress into the base table: the ways in which a compaction commits.

Owns the commits; whoever calls decides what goes into them. Invariants:

1. Rows and progress are one commit (`HandMade`, `merge_rows`), so that no crash lets rows count twice or not at all.
2. A commit succeeds only on a version that records what the compaction started from. `HandMade`: the manifest of exactly
   the next version is created if absent; `merge_rows`: the commit number (see `lance_memwal.lance.marks`), which `HandMade`
   proposes too.
3. `ConflictError` says that the commit is lost. What was made ready serves the next attempt, on `next_base`: rows are
   rows of the same generations, and of the base only what others changed since is looked at. Nothing that was decided
   on old facts is applied to new ones.
4. Nothing is committed into another table than the one that `base` is a version of (`TableReplacedError`).
5. An error whose commit landed all the same is success: the newest version is asked.
6. Files of a commit that is known to be lost, and that is not tried again, are removed (`discard`).

Between the delete pass and the upsert pass of `merge_rows` a crash is harmless: the SSTables, still unmarked, go on
hiding and replacing what the base table has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.mem_wal import CompactedSsTable

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import ConflictError, MemWalError, ObjectNotFoundError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.deletions import encode_deletions
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.lance.door import lance_at
from lance_memwal.lance.hand_made import HandMadeVersion, append_commit, details_commit, fragment_of
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.manifest import BITMAP, DeletionFile, data_path, deletion_path
from lance_memwal.lance.marks import (
    COUNTER_SHARD,
    commit_number,
    compacted,
    counted,
)
from lance_memwal.lance.prepared import Unheld, Vectors
from lance_memwal.lance.row_ids import RowIds
from lance_memwal.lance.superseded import replaced_rows, stable_ids
from lance_memwal.rows.blobs import is_second_layout
from lance_memwal.rows.keys import KeySet, concat_keys, key_array
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.sequenced import put_or_find

_LOG = logging.getLogger(__name__)
Batches = Callable[[], Iterator[pa.RecordBatch]]
_ROWS_PER_FILE = 1 << 20


class Ready(Protocol):
    """Rows and marks that can be committed on one version after the other, until one attempt wins."""

    def commit(self, base: BaseTable) -> BaseTable:
        """The version right after `base`, with rows and marks; `ConflictError` if somebody else was faster."""
        ...

    def discard(self) -> None:
        """Remove what no version holds."""
        ...


def next_base(base: BaseTable) -> BaseTable:
    """The newest version, if what was made ready for `base` can be committed on it, else `ConflictError`.

    It must record the same progress and have the same columns.
    """
    newest = TableWatch(base).look()
    if (compacted(newest), commit_number(newest)) != (compacted(base), commit_number(base)):
        raise ConflictError("another compaction committed; start over")
    if _columns(newest) != _columns(base) or newest.takes_hand_commit != base.takes_hand_commit:
        raise ConflictError("the columns or features of the base table changed; start over")
    return newest


def _columns(base: BaseTable) -> tuple[Any, ...]:
    return base.schema, base.field_ids, base.primary_key, base.data_storage_version


# --------------------------------------------------------------------------------------------------------- by hand


class HandMade:
    """New rows, and the deletion vectors of the rows that they replace, for a version that is made by hand.

    Without `keys` nothing is replaced (an append-only table). The keys of the base table are read while the new rows are
    written.
    """

    def __init__(
        self,
        keys: KeySet | None,
        batches: Batches | None,
        marks: Mapping[str, int],
        clock: Clock,
        files: Unheld,
        *,
        fsync: bool,
    ) -> None:
        self._keys = keys
        self._batches = batches
        self._marks = marks
        self._clock = clock
        self._files = files
        self._fsync = fsync
        self._fragments: list[Any] | None = None
        self._written: list[pa.Array] = []
        self._vectors = Vectors(files)

    def commit(self, base: BaseTable) -> BaseTable:
        """The version right after `base`, all of it in one commit."""
        with self._clock.pool(1, "memwal-replace") as pool:
            finding = pool.submit(self._look, base)
            if self._fragments is None:
                self._fragments = [] if self._batches is None else write_rows(base, self._rows(base), fsync=self._fsync)
                self._files.add(*files_of(base, self._fragments))
            finding.result()
        reach("compact.after_fragments")
        row_ids = self._row_ids(base, self._fragments) if base.has_stable_row_ids else None
        return commit_by_hand(
            base, self._fragments, self._vectors, self._marks, self._clock, self._files, row_ids, fsync=self._fsync
        )

    def _rows(self, base: BaseTable) -> Iterator[pa.RecordBatch]:
        """The new rows; their keys are kept where each must get the id of the row that it replaces."""
        for batch in self._batches() if self._batches is not None else ():
            if self._keys is not None and base.has_stable_row_ids:
                self._written.append(key_array([batch.column(name) for name in base.primary_key]))
            yield batch

    def _row_ids(self, base: BaseTable, fragments: Sequence[Any]) -> RowIds:
        count = sum(int(fragment.physical_rows) for fragment in fragments)
        next_id, version = base.manifest.next_row_id, base.version + 1
        losing = sorted(self._vectors.of(base)) if self._keys is not None else []
        if self._keys is None or not losing or not count:
            return RowIds.of_new_rows(count, next_id, version)
        keys, ids, created = stable_ids(base, self._keys, losing)
        rows = pc.index_in(keys, value_set=concat_keys(self._written))
        stay = rows.is_valid().to_numpy(zero_copy_only=False)
        at = rows.drop_null().to_numpy().astype(np.int64)
        return RowIds.replacing(count, next_id, version, at, ids[stay], created[stay])

    def _look(self, base: BaseTable) -> None:
        """Find the rows that go in fragments that nobody has looked at."""
        if self._keys is None:
            return
        unseen = self._vectors.unseen(base)
        found = {
            number: None
            if offsets is None
            else write_vector(base, number, offsets, self._clock, self._files, fsync=self._fsync)
            for number, offsets in replaced_rows(base, self._keys, unseen).items()
        }
        self._vectors.learn(base, unseen, found)

    def discard(self) -> None:
        """Remove what no version holds."""
        self._files.remove()


def write_vector(
    base: BaseTable, fragment_id: int, offsets: npt.NDArray[np.uint32], clock: Clock, files: Unheld, *, fsync: bool
) -> DeletionFile:
    """A deletion vector for a fragment of `base`, that no version names yet; its file is one of `files`."""
    deletion = DeletionFile(BITMAP, base.version, clock.randbits(64), len(offsets))
    path = deletion_path(fragment_id, deletion)
    files.add(path)
    _put_own(base.location.store, path, encode_deletions(offsets), fsync=fsync)
    return deletion


def _put_own(store: ObjectStore, path: str, data: bytes, *, fsync: bool) -> None:
    """Create a file whose bytes nobody else writes; `ConflictError` if others are there, or were, or the store says so."""
    try:
        is_theirs = put_or_find(store, path, data, sync=fsync) is not None
    except ObjectNotFoundError:
        is_theirs = True
    if is_theirs:
        raise ConflictError(f"somebody else created {path}")


def commit_by_hand(
    base: BaseTable,
    fragments: Sequence[Any],
    vectors: Vectors,
    marks: Mapping[str, int],
    clock: Clock,
    files: Unheld,
    row_ids: RowIds | None = None,
    *,
    fsync: bool,
) -> BaseTable:
    """The version right after `base`, with `fragments` (already durable), the deletion vectors of a keyed table, and `marks`.

    `ConflictError` if somebody else committed that version. `files` are those that the version would hold.
    """
    keyed = bool(base.primary_key)
    commit = append_commit(
        base.manifest_bytes,
        [fragment_of(fragment) for fragment in fragments],
        counted(base, marks) if keyed else marks,
        deletions=vectors.of(base) if keyed else {},
        row_ids=row_ids,
        transaction_uuid=clock.uuid4(),
        index_uuid=clock.uuid4(),
        now_ms=clock.now_ms(),
    )
    return _publish(base, commit, files, fsync=fsync)


def commit_details(base: BaseTable, details: MemWalDetails, clock: Clock, *, fsync: bool) -> BaseTable:
    """The version right after `base`, which has these details of the MemWAL index; `ConflictError` if somebody was faster.

    Never by a CreateIndex commit of Lance: one that started before a mark lands over it, and the mark is gone.
    """
    commit = details_commit(
        base.manifest_bytes,
        details,
        transaction_uuid=clock.uuid4(),
        index_uuid=clock.uuid4(),
        now_ms=clock.now_ms(),
    )
    files = Unheld(base.location.store)
    try:
        return _publish(base, commit, files, fsync=fsync)
    finally:
        files.remove()


def _publish(base: BaseTable, commit: HandMadeVersion, files: Unheld, *, fsync: bool) -> BaseTable:
    """The hand-made version, created only if nobody committed since `base`."""
    if TableWatch(base).look().version != base.version:
        raise ConflictError(f"somebody else committed base version {base.version + 1}")
    store = base.location.store
    files.add(commit.transaction_path)
    if fsync:
        base.make_durable()  # the new version holds files of this one
    _put_own(store, commit.transaction_path, commit.transaction, fsync=fsync)
    reach("compact.before_manifest")
    try:
        with files.offered():
            _put_own(store, base.path_of(commit.version), commit.manifest, fsync=fsync)
    except ConflictError:
        files.drop(commit.transaction_path)
        raise
    return base.refresh()


# -------------------------------------------------------------------------------------------------------- by Lance


def merge_rows(base: BaseTable, deletes: pa.Table, upserts: Batches | None, marks: Mapping[str, int]) -> BaseTable:
    """The version after `base` that holds the deletes, the upserts and `marks`."""
    key = list(base.primary_key)
    numbered = counted(base, marks)
    if deletes.num_rows:
        reach("compact.before_delete")
        marked = numbered if upserts is None else None
        _merge(base, lambda: base.handle().merge_insert(key).when_matched_delete(), deletes, marked)
        reach("compact.after_delete")
        if upserts is None:
            return base.refresh()
        base = next_base(base)
    if upserts is None:
        return mark(base, numbered)
    reach("compact.before_upsert")
    reader = pa.RecordBatchReader.from_batches(base.schema, upserts())
    _merge(
        base,
        lambda: base.handle().merge_insert(key).when_matched_update_all().when_not_matched_insert_all(),
        reader,
        numbered,
    )
    return base.refresh()


def mark(base: BaseTable, marks: Mapping[str, int]) -> BaseTable:
    """The version after `base` that records `marks` and changes no row."""
    column = list(base.primary_key) or [_joinable(base)]
    empty = no_rows(base.schema)
    _merge(base, lambda: base.handle().merge_insert(column).when_not_matched_insert_all(), empty, marks)
    return base.refresh()


def _joinable(base: BaseTable) -> str:
    for field in base.schema:
        kind = field.type
        if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
            return str(field.name)
    return str(base.schema.names[0])


def _merge(base: BaseTable, build: Callable[[], Any], rows: Any, marks: Mapping[str, int] | None) -> None:
    """Run one merge on exactly `base`, with `marks`; `ConflictError` if the base moved.

    A merge that asks an index does not notice rows of the same keys that others add meanwhile: it would double them.
    """
    TableWatch(base).look()
    try:
        with lance_errors("compacting into the base table"):
            builder = build().conflict_retries(0).use_index(False)
            if marks is not None:
                listed = [CompactedSsTable(shard, number) for shard, number in sorted(marks.items())]
                builder = builder.mark_sstables_as_compacted(listed)
            builder.execute(rows)
    except MemWalError as error:
        newest = base.refresh()
        if newest.version == base.version:
            raise
        if not _has_landed(newest, marks, error):
            raise ConflictError(f"the base table moved to version {newest.version} meanwhile; start over") from error


def _has_landed(newest: BaseTable, marks: Mapping[str, int] | None, error: MemWalError) -> bool:
    """Whether a commit that ended with `error` is in `newest` all the same: the marks that it carries are."""
    there = compacted(newest) | {COUNTER_SHARD: commit_number(newest)}
    if not marks or any(there.get(shard, 0) != number for shard, number in marks.items()):
        return False
    _LOG.info("compaction landed although its commit failed [version=%d]: %s", newest.version, error)
    return True


def write_rows(base: BaseTable, batches: Iterator[pa.RecordBatch], *, fsync: bool) -> list[Any]:
    """The fragments of data files with all rows, that no version holds yet; with `fsync` they survive power loss."""
    reader = pa.RecordBatchReader.from_batches(base.schema, batches)
    with lance_errors("writing rows for the base table"):
        operation = lance_at(base.location).write_fragments(
            reader,
            "",
            base=base.dataset,
            data_storage_version=base.data_storage_version,
            max_rows_per_file=_ROWS_PER_FILE,
        )
    if fsync:
        for path in files_of(base, operation.fragments):
            base.location.store.sync_tree(path)
    return list(operation.fragments)


def files_of(base: BaseTable, fragments: Sequence[Any]) -> list[str]:
    """The data files of fragments, and the files of blobs beside them, which tables with the second layout have."""
    found = paths_of(fragments)
    if not any(is_second_layout(field.type) for field in base.schema):
        return found
    beside = [base.location.store.list(path.removesuffix(".lance")) for path in found]
    return [*found, *(item.path for listed in beside for item in listed)]


def paths_of(fragments: Sequence[Any]) -> list[str]:
    """The data files of fragments as Lance describes them."""
    return [data_path(str(file.path)) for fragment in fragments for file in fragment.files]


# -------------------------------------------------------------------------------------------------------- durability


def syncs(base: BaseTable) -> bool:
    """Whether what is committed to the base table is synced, where a store needs it; the settings of the table may say no."""
    stored = {} if base.details is None else base.details.writer_config_defaults
    return WriterConfig.from_defaults(stored).fsync


def let_survive(base: BaseTable) -> None:
    """Let this version survive power loss, whoever committed it, unless the settings of the table say that nothing has to.

    Lance syncs nothing. So this comes before something durable names the version, before anything goes that only an older
    one needs, and before a call returns that let Lance commit.
    """
    if syncs(base):
        base.make_durable()
