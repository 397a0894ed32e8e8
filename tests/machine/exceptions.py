"""Public names that no step of the machine uses, each with its reason. The name of a class stands for all that it has."""

from __future__ import annotations

__all__ = ["EXCEPTIONS"]

_REASONS: dict[str, str] = {
    "a value that calls return; steps judge what it says where they ask": """
        Checkpoint CompactionReport ConsumerInfo FlushReport GcReport IndexInfo MaintenanceReport MemWalDetails
        Problem RepairReport SettleReport ShardInfo ShardManifest ShardStatus ShardingField ShardingSpec SsTable
        TableStats VerifyReport WalEntry""",
    "an error that nothing of a life should raise; tests/project/test_error_types.py has all": """
        ChangedKeysError ClosedError ConflictError CorruptDataError MemWalError MissingLibraryError
        ReplayMismatchError SearchIncompleteWarning UnavailableError UnsupportedFormatError WriterPoisonedError""",
    "the engine asks it, users only make one": """
        BTreeIndex Bucket Cursor.check_table Cursor.place Cursor.stored FtsIndex HnswIndex Identity LastWrite.remember_ms
        Manual Snapshot.check_table Snapshot.is_part_of Snapshot.stored Unsharded""",
    "the engine's own rooms call it: upkeep, serving, forks, parking": """
        ChangeFeed.needed Scan.snapshot ShardWriter.append ShardWriter.capture ShardWriter.delete_matching
        ShardWriter.is_parked ShardWriter.is_writing ShardWriter.leave ShardWriter.of_table ShardWriter.orphan
        ShardWriter.park ShardWriter.publish ShardWriter.put_together ShardWriter.seal ShardWriter.shard_time_ms
        ShardWriter.table_id ShardWriter.unpublished_generation ShardWriter.update_matching Table.base
        TableWriter.attend TableWriter.follow_columns TableWriter.orphan WalAppender.orphan WalTailer.peek""",
    "TableWriter calls it for every shard, and steps call that": "ShardWriter.abort ShardWriter.evolve_schema",
    "commits by hand may break any table; tests/manifest has them": """
        ShardManifestStore.commit_maintenance ShardManifestStore.commit_update ShardManifestStore.is_newest
        ShardManifestStore.read_again ShardManifestStore.read_version ShardManifestStore.sight
        ShardManifestStore.sighted ShardManifestStore.written_ms""",
    "of Python's files; tests/blobs/test_blob_files.py has them": "BlobFile.read1 BlobFile.readable BlobFile.seekable",
    "a life sets every writer by keywords; tests/config/test_writer_config.py has it": "WriterConfig",
    "messages of another system, without a table; tests/feed/test_debezium.py has them": """
        DebeziumWrite from_debezium to_debezium""",
    "a text": "__version__",
}
EXCEPTIONS: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
