"""Classic bugs of a write path, each as a change of one place in the source, and the tests that must turn red.

Owns `BUGS`. A change names text that occurs once in its file, so that a catalogue that has fallen behind the code is
noticed by the tests of every commit. `python -m tests.bugs` (or `make bugs`) plants them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUGS", "Bug"]


@dataclass(frozen=True, slots=True)
class Bug:
    """`was` becomes `now` in `file`, below the package; `tests` are where somebody must notice."""

    name: str
    file: str
    was: str
    now: str
    tests: tuple[str, ...]


BUGS = (
    # ------------------------------------------------------------------------------------------------------ the log
    Bug(
        "an entry replaces what is at its position",
        "store/own.py",
        "store.put_new(path, data, sync=sync, make_directory=make_directory)",
        "store.put(path, data, sync=sync)",
        ("tests/fencing",),
    ),
    Bug(
        "an answer that was lost is taken for somebody else's entry",
        "store/own.py",
        "    if found != data:\n        return found\n",
        "    return found\n",
        ("tests/wal/test_appender.py", "tests/faults/test_single_fault_sweep.py"),
    ),
    Bug(
        "an entry of a higher epoch does not fence",
        "log/wal.py",
        "    if entry.writer_epoch > epoch:\n",
        "    if entry.writer_epoch > epoch + 1_000:\n",
        ("tests/fencing", "tests/wal"),
    ),
    Bug(
        "a claim places no sentinel",
        "log/wal.py",
        "sentinel = log.place_sentinel(transactions, joint=joint)",
        "sentinel = log.next_position",
        ("tests/fencing", "tests/wal"),
    ),
    Bug(
        "an entry of another table counts",
        "types.py",
        "return tag is None or self.table is None or self.table == tag",
        "return True",
        ("tests/identity",),
    ),
    Bug(
        "the checksum of an entry is not looked at",
        "log/footer.py",
        "    if zlib.crc32(memoryview(data)[:stream_length]) != stream_crc:\n        return",
        "    if stream_crc < 0:\n        return",
        ("tests/format", "tests/fuzz", "tests/wal"),
    ),
    # ------------------------------------------------------------------------------------------------------ manifests
    Bug(
        "a version of a manifest replaces another",
        "log/manifest.py",
        "created = self.location.store.put_new(path, data, sync=self._fsync, make_directory=make_directory)",
        "created = self.location.store.put(path, data, sync=self._fsync) or PutResult.CREATED",
        ("tests/manifest", "tests/faults"),
    ),
    Bug(
        "a fenced writer may still commit a generation",
        "log/manifest.py",
        "if epoch is not None and latest.writer_epoch > epoch:",
        "if epoch is not None and latest.writer_epoch > epoch + 1_000:",
        ("tests/manifest", "tests/fencing/test_stalled_in_a_flush.py"),
    ),
    Bug(
        "the cursor moves past what was flushed",
        "write/flush.py",
        "else with_generation(latest, sstable, covered_position)",
        "else with_generation(latest, sstable, covered_position + 1)",
        ("tests/flush", "tests/crash/test_every_kill_point.py"),
    ),
    # ------------------------------------------------------------------------------------------------- puts and replay
    Bug(
        "readers see what a crash could take back",
        "write/group_commit.py",
        "return self.durable if self._limits.durable_write else self.buffered",
        "return self.buffered",
        ("tests/writer", "tests/rww"),
    ),
    Bug(
        "a transaction that is there already is written again",
        "write/group_commit.py",
        "return None if self.admit(txn) else 0",
        "return None",
        ("tests/wal/test_transactions.py", "tests/writer"),
    ),
    Bug(
        "replay forgets which rows were deletes",
        "write/replay.py",
        "tables.replayed(batch, flags, position)",
        "tables.replayed(batch, None, position)",
        ("tests/writer", "tests/crash/test_every_kill_point.py"),
    ),
    Bug(
        "replay does not flush at the borders of generations",
        "write/replay.py",
        "if generation != tables.active.generation:",
        "if generation < 0:",
        ("tests/writer", "tests/crash", "tests/interop"),
    ),
    # ------------------------------------------------------------------------------------------------- appends of sinks
    Bug(
        "an append of a sink is made again",
        "write/once.py",
        "or self.catch_up(claim)\n            if tail.transactions.is_repeat(txn):\n",
        "or self.catch_up(claim)\n            if attempt and tail.transactions.is_repeat(txn):\n",
        ("tests/wal", "tests/faults/test_append_once_interleavings.py"),
    ),
    Bug(
        "a sink replaces an entry that another one made",
        "write/once.py",
        "self.location.store.put_new(path, data, sync=self._version.config.fsync, make_directory=False)",
        "self.location.store.put(path, data, sync=self._version.config.fsync)",
        ("tests/wal", "tests/faults/test_append_once_interleavings.py"),
    ),
    Bug(
        "an entry in a slot that collection had emptied counts",
        "write/once.py",
        "if position > newest.replay_after_wal_entry_position:",
        "if position > 0:",
        ("tests/wal", "tests/faults/test_append_once_interleavings.py"),
    ),
    # ------------------------------------------------------------------------------------------------------------ reads
    Bug(
        "deleted rows come back in look-ups",
        "read/lookup.py",
        "return live.filter(pa.array(~flags)) if flags.any() else live",
        "return live",
        ("tests/scan", "tests/rww", "tests/table"),
    ),
    Bug(
        "an older memtable wins over a newer one",
        "read/lookup.py",
        "for ref in reversed(merge.view.memory):",
        "for ref in merge.view.memory:",
        ("tests/rww", "tests/table", "tests/scan"),
    ),
    Bug(
        "base rows show beside their newer ones",
        "read/merge.py",
        "        if not parts:\n            return self._hiding\n",
        "        if parts or not parts:\n            return self._hiding\n",
        ("tests/scan",),
    ),
    Bug(
        "a bloom filter misses a key",
        "sstable/bloom.py",
        "    blocks, bits = places(hashes)\n    flags = np.zeros",
        "    blocks, bits = places(hashes[1:])\n    flags = np.zeros",
        ("tests/format", "tests/flush", "tests/scan"),
    ),
    Bug(
        "a count counts tombstones",
        "read/count.py",
        "            alive[own[~not_in(index.offsets[own], offsets)]] = False\n",
        "            pass\n",
        ("tests/scan", "tests/table"),
    ),
    Bug(
        "a count counts base rows that were replaced",
        "read/count.py",
        "    return len(superseded_rows(snapshot, shards).all)\n",
        "    return len(superseded_rows(snapshot, shards).by_sstables)\n",
        ("tests/scan", "tests/table"),
    ),
    Bug(
        "a second scan shows base rows that were replaced since the first",
        "read/superseded_rows.py",
        "        if start < ref.num_rows:\n",
        "        if not start:\n",
        ("tests/scan",),
    ),
    # ------------------------------------------------------------------------------------------------------- compaction
    Bug(
        "compaction forgets deletes",
        "sstable/fold.py",
        "dead.append((member, mask & member.flags))",
        "dead.append((member, mask & ~mask))",
        ("tests/compact",),
    ),
    Bug(
        "compaction keeps the oldest row of a key",
        "sstable/fold.py",
        "zip(members, newest_of_each(own), strict=True)",
        "zip(members, list(newest_of_each(own[::-1]))[::-1], strict=True)",
        ("tests/compact",),
    ),
    Bug(
        "a manifest forgets generations before the base is on the disk",
        "compact/trim.py",
        "    if due and syncs(base):\n",
        "    if due and not due:\n",
        ("tests/compact/test_compact_rows.py",),
    ),
    # ------------------------------------------------------------------------------------------------------- collection
    Bug(
        "collection takes an entry that is not flushed",
        "upkeep/gc.py",
        "            if position <= cursor and not stays:\n",
        "            if position <= cursor + 1 and not stays:\n",
        ("tests/gc/test_gc_keeps_the_map.py",),
    ),
    Bug(
        "collection takes the newest map of transactions",
        "upkeep/gc.py",
        "or position >= with_map\n",
        "or position > newest\n",
        ("tests/gc", "tests/wal"),
    ),
    Bug(
        "collection takes what checkpoints and consumers need",
        "upkeep/gc.py",
        '    """Whether somebody keeps this object."""\n',
        '    """Whether somebody keeps this object."""\n    return False\n',
        ("tests/feed",),
    ),
    Bug(
        "collection knows no period of grace",
        "upkeep/gc.py",
        "            and item.modified_ms <= oldest_ms\n        ]\n        try:\n            return manifests.read_version",
        "        ]\n        try:\n            return manifests.read_version",
        ("tests/gc",),
    ),
    Bug(
        "a consumer does not hold collection back",
        "upkeep/consumer_records.py",
        "return any(record.position(shard_id) < position for record in self.consumers)",
        "return False",
        ("tests/feed/test_consumers.py", "tests/feed"),
    ),
    Bug(
        "the floor is not raised before objects go",
        "upkeep/gc.py",
        "Floor(self._location, places.shard_id, self._clock).raise_to(places.highest(dead), witness.version)",
        "Floor(self._location, places.shard_id, self._clock)",
        ("tests/feed", "tests/gc"),
    ),
    # --------------------------------------------------------------------------------------------------------- identity
    Bug(
        "a table that was made anew is taken for the old one",
        "lance/identity.py",
        "        if base.table_id != self.table_id:\n",
        "        if base.table_id is None:\n",
        ("tests/identity",),
    ),
    Bug(
        "a base that was restored to an older state is written to",
        "lance/identity.py",
        "        if fallen:\n",
        "        if fallen and not fallen:\n",
        ("tests/identity",),
    ),
    # ------------------------------------------------------------------------------------------------- sequences, digests
    Bug(
        "a late row is taken for a new one",
        "write/sequences.py",
        "return (noted is not None and lowest < noted) or (before is not None and lowest < before)",
        "return False",
        ("tests/writer/test_merge.py",),
    ),
    Bug(
        "a digest depends on the order of rows",
        "rows/digest.py",
        "int(_mixed(rows + _STEP, 0).sum(dtype=np.uint64))",
        "int(_mixed(rows + np.arange(1, len(rows) + 1, dtype=np.uint64) * _STEP, 0).sum(dtype=np.uint64))",
        ("tests/schema/test_row_digest.py",),
    ),
)
