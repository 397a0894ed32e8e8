"""Rows and progress into the base table: the ways in which a compaction commits.

Owns the commits; whoever calls decides what goes into them. Invariants:

1. Data and marks are one commit (`replace_rows`, `append_rows`, `merge_rows`), or two of which the first names the marks
   (`append_in_two`), so that no crash lets rows count twice or not at all.
2. A commit succeeds only on a version that records what the compaction started from. `replace_rows` and `append_rows`:
   the manifest of exactly the next version is created if absent; `merge_rows`: the commit number (see
   `memwal.progress`), which `replace_rows` proposes too; `append_in_two`: the commit also names the first fragment as
   rewritten, so that any two of them collide (Lance would rebase a plain append).
3. Nothing is ever re-executed on a newer version: a row that was decided on old facts is not applied to new ones.
   `ConflictError` says that the base moved; the caller starts over.
4. Nothing is committed into another table than the one that `base` is a version of (`TableReplacedError`).
5. An error whose commit landed all the same is success: the newest version is asked.

Between the delete pass and the upsert pass of `merge_rows` a crash is harmless: the SSTables, still unmarked, go on
hiding and replacing what the base table has.

Called by: compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance import Transaction
from lance.dataset import LanceOperation
from lance.fragment import write_fragments
from lance.mem_wal import CompactedSsTable

from memwal.base_table import BaseTable, lance_errors, lance_options
from memwal.clock import Clock, thread_pool
from memwal.errors import ConflictError, MemWalError, ObjectExistsError
from memwal.format.deletions import encode_deletions
from memwal.format.lance_commit import append_commit, fragment_of
from memwal.format.lance_manifest import BITMAP, DataFile, DeletionFile, data_path, deletion_path, version_path
from memwal.hooks import reach
from memwal.identity import TableWatch
from memwal.key_set import KeySet
from memwal.normal_form import no_rows
from memwal.progress import COUNTER_SHARD, PROPERTY, commit_number, encode_property, recorded
from memwal.replaced import replaced_rows

__all__ = [
    "Batches",
    "append_in_two",
    "append_rows",
    "commit_by_hand",
    "mark",
    "merge_rows",
    "replace_rows",
    "sync_version",
    "write_rows",
]

_LOG = logging.getLogger(__name__)
Batches = Callable[[], Iterator[pa.RecordBatch]]
_ROWS_PER_FILE = 1 << 20


# --------------------------------------------------------------------------------------------------------- by hand


def append_rows(base: BaseTable, batches: Batches, marks: Mapping[str, int], clock: Clock, *, fsync: bool) -> BaseTable:
    """The version right after `base`, with the rows appended and `marks` recorded in one commit."""
    fragments = write_rows(base, batches(), fsync=fsync)
    reach("compact.after_fragments")
    return commit_by_hand(base, fragments, {}, marks, clock, fsync=fsync)


def replace_rows(
    base: BaseTable, keys: KeySet, batches: Batches | None, marks: Mapping[str, int], clock: Clock, *, fsync: bool
) -> BaseTable:
    """The version right after `base`: without the rows that have one of `keys`, with the new ones, and with `marks`.

    All of it is one commit. The keys of the base table are read while the new rows are written.
    """
    with thread_pool(1, "memwal-replace") as pool:
        finding = pool.submit(replaced_rows, base, keys)
        fragments = [] if batches is None else write_rows(base, batches(), fsync=fsync)
        replaced = finding.result()
    reach("compact.after_fragments")
    deletions = {
        number: None if offsets is None else _write_deletions(base, number, offsets, clock, fsync=fsync)
        for number, offsets in replaced.items()
    }
    counted = {**marks, COUNTER_SHARD: commit_number(base) + 1}
    return commit_by_hand(base, fragments, deletions, counted, clock, fsync=fsync)


def _write_deletions(
    base: BaseTable, fragment_id: int, offsets: npt.NDArray[np.uint32], clock: Clock, *, fsync: bool
) -> DeletionFile:
    deletion = DeletionFile(BITMAP, base.version, clock.randbits(64), len(offsets))
    base.location.store.put_new(deletion_path(fragment_id, deletion), encode_deletions(offsets), sync=fsync)
    return deletion


def commit_by_hand(
    base: BaseTable,
    fragments: Sequence[Any],
    deletions: Mapping[int, DeletionFile | None],
    marks: Mapping[str, int],
    clock: Clock,
    *,
    fsync: bool,
) -> BaseTable:
    """The version right after `base`, with `fragments` (already durable), other deletion vectors, and `marks`.

    None for a deletion vector leaves the fragment out. `ConflictError` if somebody else committed that version.
    """
    commit = append_commit(
        base.manifest_bytes,
        [fragment_of(fragment) for fragment in fragments],
        marks,
        deletions=deletions,
        transaction_uuid=clock.uuid4(),
        index_uuid=clock.uuid4(),
        now_ms=clock.now_ms(),
    )
    TableWatch(base).look()
    store = base.location.store
    store.put_new(commit.transaction_path, commit.transaction, sync=fsync)
    reach("compact.before_manifest")
    try:
        store.put_new(commit.manifest_path, commit.manifest, sync=fsync)
    except ObjectExistsError:
        raise ConflictError(f"somebody else committed base version {commit.version}; start over") from None
    return base.refresh()


# -------------------------------------------------------------------------------------------------------- by Lance


def merge_rows(base: BaseTable, deletes: pa.Table, upserts: Batches | None, marks: Mapping[str, int]) -> BaseTable:
    """The version after `base` that holds the deletes, the upserts and `marks`."""
    key = list(base.primary_key)
    number = commit_number(base) + 1
    counted = {**marks, COUNTER_SHARD: number}
    if deletes.num_rows:
        reach("compact.before_delete")
        marked = counted if upserts is None else None
        _merge(base, lambda: base.handle().merge_insert(key).when_matched_delete(), deletes, marked)
        reach("compact.after_delete")
        if upserts is None:
            return base.refresh()
        base = _same_progress(base)
    if upserts is None:
        return mark(base, counted)
    reach("compact.before_upsert")
    reader = pa.RecordBatchReader.from_batches(base.schema, upserts())
    _merge(
        base,
        lambda: base.handle().merge_insert(key).when_matched_update_all().when_not_matched_insert_all(),
        reader,
        counted,
    )
    return base.refresh()


def _same_progress(base: BaseTable) -> BaseTable:
    """The newest version, if it still records what `base` does."""
    newest = base.refresh()
    if recorded(newest) != recorded(base) or commit_number(newest) != commit_number(base):
        raise ConflictError("another compaction committed; start over")
    return newest


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
    """Run one merge on exactly `base`, with `marks`; `ConflictError` if the base moved."""
    TableWatch(base).look()
    try:
        with lance_errors("compacting into the base table"):
            builder = build().conflict_retries(0)
            if marks is not None:
                listed = [CompactedSsTable(shard, number) for shard, number in sorted(marks.items())]
                builder = builder.mark_sstables_as_compacted(listed)
            builder.execute(rows)
    except MemWalError as error:
        _judge(base, marks, error)


def _judge(base: BaseTable, marks: Mapping[str, int] | None, error: MemWalError) -> None:
    """Return if the commit landed all the same; `ConflictError` if the base moved, else `error`."""
    newest = base.refresh()
    if newest.version == base.version:
        raise error
    details = newest.details
    if marks and details is not None and all(details.compacted.get(s, 0) == n for s, n in marks.items()):
        _LOG.info("compaction landed although its commit failed [version=%d]: %s", newest.version, error)
        return
    raise ConflictError(f"the base table moved to version {newest.version} meanwhile; start over") from error


def append_in_two(base: BaseTable, batches: Batches, marks: Mapping[str, int]) -> BaseTable:
    """The rows in one commit that names `marks`, the marks in the next one; for bases that refuse `append_rows`."""
    present = base.dataset.get_fragments()
    if not present:  # nothing can match in an empty table: one merge inserts every row and carries the marks
        column = _joinable(base)
        reader = pa.RecordBatchReader.from_batches(base.schema, batches())
        _merge(base, lambda: base.handle().merge_insert([column]).when_not_matched_insert_all(), reader, marks)
        return base.refresh()
    fragments = write_rows(base, batches(), fsync=False)  # `sync_version` follows
    reach("compact.after_fragments")
    operation = LanceOperation.Update(
        removed_fragment_ids=[],
        updated_fragments=[present[0].metadata],
        new_fragments=fragments,
        fields_modified=[],
        update_mode="rewrite_rows",
    )
    transaction = Transaction(
        read_version=base.version, operation=operation, transaction_properties={PROPERTY: encode_property(dict(marks))}
    )
    TableWatch(base).look()
    try:
        with lance_errors("appending to the base table"):
            lance.LanceDataset.commit(
                base.location.dataset_uri, transaction, max_retries=0, storage_options=lance_options(base.location)
            )
    except MemWalError as error:
        _judge(base, None, error)
    reach("compact.between_commits")
    return mark(base.refresh(), marks)


def write_rows(base: BaseTable, batches: Iterator[pa.RecordBatch], *, fsync: bool) -> list[Any]:
    """The fragments of data files with all rows, that no version holds yet; with `fsync` they survive power loss."""
    reader = pa.RecordBatchReader.from_batches(base.schema, batches)
    with lance_errors("writing rows for the base table"):
        transaction = write_fragments(
            reader,
            base.dataset,
            mode="append",
            data_storage_version=base.data_storage_version,
            max_rows_per_file=_ROWS_PER_FILE,
            storage_options=lance_options(base.location),
            return_transaction=True,
        )
    operation: Any = transaction.operation
    if fsync:
        for fragment in operation.fragments:
            for file in fragment.files:
                base.location.store.sync_tree(data_path(str(file.path)))
    return list(operation.fragments)


# -------------------------------------------------------------------------------------------------------- durability


def sync_version(before: BaseTable | None, after: BaseTable) -> None:
    """Make everything that `after` has and `before` has not survive power loss; all of it without `before`."""
    store = after.location.store
    if before is None:
        names = store.list_names("")
        for directory in ("data", "_deletions", "_transactions", "_versions"):
            if directory in names:
                store.sync_tree(directory)
        return
    known = _files(before)
    for path in sorted(_files(after) - known):
        store.sync_tree(path)
    store.sync_tree("_transactions")
    for version in range(before.version + 1, after.version + 1):
        store.sync_tree(version_path(version))


def _files(base: BaseTable) -> set[str]:
    found = set()
    for fragment in base.manifest.fragments():
        found |= {data_path(file.path) for file in fragment.files if _is_plain(file)}
        if fragment.deletion is not None:
            found.add(deletion_path(fragment.id, fragment.deletion))
    return found


def _is_plain(file: DataFile) -> bool:
    return bool(file.path)
