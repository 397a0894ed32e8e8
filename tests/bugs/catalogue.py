"""Classic bugs of a write path, each as a change of one place in the source, and the tests that must turn red.

Owns `BUGS`. A change names text that occurs once in its file, so that a catalogue that has fallen behind the code is
noticed by the tests of every commit. `python -m tests.bugs` (or `make bugs`) plants them one by one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bug:
    """`was` becomes `now` in `file`, below the package; `tests` are where somebody must notice."""

    name: str
    file: str
    was: str
    now: str
    tests: tuple[str, ...]


BUGS = (
    # ---------------------------------------------------------------------------------------- distributed compaction
    Bug(
        "stage B takes the keys of the first generation only",
        "spark/stages.py",
        "keys_alone() for shard, sstable in members]",
        "keys_alone() for shard, sstable in members[:1]]",
        ("tests/spark/test_distributed_compaction.py",),
    ),
    # ------------------------------------------------------------------------------------------------------ the log
    Bug(
        "an entry replaces what is at its position",
        "store/sequenced.py",
        "store.put_new(path, data, sync=sync, make_directory=make_directory)",
        "store.put(path, data, sync=sync)",
        ("tests/fencing",),
    ),
    Bug(
        "an answer that was lost is taken for somebody else's entry",
        "store/sequenced.py",
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
        "a dropped column is taken for a renamed one",
        "lance/column_past.py",
        "                    answer = False\n",
        "                    pass\n",
        ("tests/schema/test_dropped_columns_stay_dropped.py",),
    ),
    Bug(
        "entries do not name their base version",
        "log/footer.py",
        '        value["base"] = footer.base.version\n',
        "        pass\n",
        ("tests/format/test_wal_entry.py",),
    ),
    Bug(
        "a data file that is younger than the rows vouches for their columns",
        "lance/column_past.py",
        "self.fragment < base.fragments",
        "True",
        ("tests/schema/test_dropped_columns_stay_dropped.py",),
    ),
    Bug(
        "undecided columns are compacted as null",
        "sstable/fold.py",
        "if undecided := self.reader.undecided(self._schema):",
        "if False and (undecided := self.reader.undecided(self._schema)):",
        ("tests/schema/test_dropped_columns_stay_dropped.py",),
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
        ("tests/manifest", "tests/fencing/test_stalled_writers.py"),
    ),
    Bug(
        "the cursor moves past what was flushed",
        "write/flush.py",
        "else with_generation(latest, sstable, covered_position)",
        "else with_generation(latest, sstable, covered_position + 1)",
        ("tests/flush", "tests/crash/test_kills.py"),
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
        ("tests/writer", "tests/crash/test_kills.py"),
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
        "        if tail.transactions.is_repeat(self.txn):\n",
        "        if self.created is not None and tail.transactions.is_repeat(self.txn):\n",
        ("tests/wal/test_append_once_shared_epoch.py", "tests/wal"),
    ),
    Bug(
        "a sink replaces an entry that another one made",
        "write/once.py",
        "self.location.store.put_new(path, data, sync=self._version.config.fsync, make_directory=False)",
        "self.location.store.put(path, data, sync=self._version.config.fsync)",
        ("tests/wal/test_append_once_shared_epoch.py", "tests/wal"),
    ),
    Bug(
        "no manifest check follows the create of a shared entry",
        "write/once.py",
        "is_newest = self.manifests(claim.shard_id).is_newest(tail.manifest.version)",
        "is_newest = True",
        ("tests/wal/test_append_once_shared_epoch.py", "tests/wal"),
    ),
    Bug(
        "a shared entry below the cursor counts",
        "write/once.py",
        "is_above = position > newest.replay_after_wal_entry_position and",
        "is_above = position > 0 or",
        ("tests/wal/test_append_once_shared_epoch.py", "tests/wal"),
    ),
    Bug(
        "a create follows two unconfirmed entries",
        "write/once.py",
        "or (tail.unconfirmed > 1 and not self._confirm(claim, tail))",
        "or (tail.unconfirmed > 99 and not self._confirm(claim, tail))",
        ("tests/wal/test_append_once_shared_epoch.py",),
    ),
    Bug(
        "an append is skipped because of an unconfirmed entry",
        "write/once.py",
        "            elif tail.unconfirmed:  # append R8",
        "            elif tail.unconfirmed > 99:  # append R8",
        ("tests/wal/test_append_once_shared_epoch.py",),
    ),
    Bug(
        "writers of a shard take no turns",
        "write/append_turns.py",
        "        return self._queue.index(self._writer) + (position % _POSITIONS_PER_NEWCOMER == 0)\n",
        "        return 0\n",
        ("tests/wal/test_sinks_join.py",),
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
        "a look-up over cold SSTables asks the oldest first",
        "sstable/several.py",
        "list(reversed(readers))",
        "list(readers)",
        ("tests/scan",),
    ),
    Bug(
        "a bloom filter misses a key",
        "sstable/bloom.py",
        "    blocks, bits = _places(hashes)\n    flags = np.zeros",
        "    blocks, bits = _places(hashes[1:])\n    flags = np.zeros",
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
        "Lance ranks superseded rows in a text search",
        "read/text_search.py",
        "row_addr_blocklist=blocked,",
        "row_addr_blocklist=None,",
        ("tests/search/test_texts_of_the_base.py",),
    ),
    Bug(
        "rows that were superseded since the list for Lance was made are found",
        "read/superseded_rows.py",
        "            return known.data, new\n",
        "            return known.data, _NONE\n",
        ("tests/search/test_texts_of_the_base.py",),
    ),
    Bug(
        "a search of an earlier snapshot leaves out rows that were superseded since",
        "read/superseded_rows.py",
        " and len(new) + len(known.by_memory) == len(rows.by_memory)",
        "",
        ("tests/search/test_texts_of_the_base.py",),
    ),
    Bug(
        "fresh rows are scored by their own statistics",
        "read/text_search.py",
        "    known = None if base is None else base.stats(column, present)\n",
        "    known = None\n",
        ("tests/search/test_texts_of_the_base.py",),
    ),
    Bug(
        "a row is found by its earlier text",
        "read/text_search.py",
        "self._base.has_stable_row_ids",
        "False",
        ("tests/search/test_texts_of_the_base.py",),
    ),
    Bug(
        "a fragment that one of two indexes covers is searched by that one alone",
        "read/text_search.py",
        "if len(self._analyzers) > 1:",
        "if len(self._analyzers) > 2:",
        ("tests/search/test_texts_of_the_base.py",),
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
        "    if due:\n        let_survive(base)\n",
        "",
        ("tests/compact/test_compact_rows.py",),
    ),
    # ------------------------------------------------------------------------------------------------------- power loss
    Bug(
        "our version of the base is not synced",
        "lance/commit.py",
        "commit.manifest, fsync=fsync)",
        "commit.manifest, fsync=False)",
        ("tests/power",),
    ),
    Bug(
        "a record is not synced",
        "store/sequenced.py",
        "path, data, sync=True) is None",
        "path, data, sync=False) is None",
        ("tests/power",),
    ),
    Bug(
        "a compaction that forgets nothing is not synced",
        "compact/run.py",
        "                if tally.commits:\n",
        "                if not tally:\n",
        ("tests/power",),
    ),
    Bug(
        "a version of maintenance is not synced",
        "upkeep/maintain.py",
        "        let_survive(self._watch.look())",
        "        self._watch.look()",
        ("tests/power",),
    ),
    Bug(
        "a checkpoint is not synced with the version that it names",
        "feed/checkpoints.py",
        "        let_survive(tagged)",
        "        pass",
        ("tests/power",),
    ),
    Bug(
        "a consumer is not synced with the version that it names",
        "feed/consumers.py",
        "            let_survive(self._newest())\n",
        "            self._newest()\n",
        ("tests/power",),
    ),
    Bug(
        "an index is not synced",
        "upkeep/indexes.py",
        "    let_survive(made)\n",
        "",
        ("tests/power",),
    ),
    # ------------------------------------------------------------------------------------------------------- collection
    Bug(
        "collection takes an entry that is not flushed",
        "upkeep/gc.py",
        "            if position <= cursor and not stays:\n",
        "            if position <= cursor + 1 and not stays:\n",
        ("tests/gc/test_gc_rules.py",),
    ),
    Bug(
        "collection takes the newest map of transactions",
        "upkeep/gc.py",
        "or position >= with_map\n",
        "or position > newest\n",
        ("tests/gc", "tests/wal"),
    ),
    Bug(
        "GC deletes the newest entry of a log",
        "upkeep/gc.py",
        "or position >= with_map\n",
        "or with_map <= position < newest\n",
        ("tests/gc/test_gc_rules.py",),
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
        "        floor.raise_to(places.highest(still))\n",
        "",
        ("tests/feed", "tests/gc"),
    ),
    # ------------------------------------------------------------------------------------------------------ shared shards
    Bug(
        "an owner answers a forwarded put before it is durable",
        "serve/wire.py",
        "            return writer.put(parts[0], txn=txn, **conditions)\n",
        "            import threading\n\n"
        "            threading.Timer(0.2, writer.put, (parts[0],), {'txn': txn, **conditions}).start()\n"
        "            return result_of({writer.shard_id: ShardWrite(range(1, 2), sum(map(len, parts[0] or ())))})\n",
        ("tests/serve/test_shared_writers.py::test_every_verb_is_forwarded",),
    ),
    Bug(
        "a forwarded write that is sent again has another mark",
        "serve/shared_shard.py",
        "                if marked and given is None:\n",
        "                if marked and (given is None or mark is not None):\n",
        ("tests/serve/test_owners_that_die.py::test_a_put_whose_answer_was_lost_is_not_written_twice",),
    ),
    # ------------------------------------------------------------------------------------------------------- change feed
    Bug(
        "a reader that was replaced moves the place of its consumer back",
        "feed/consumers.py",
        "            return replace(record, number=newest.number + 1, written_ms",
        "            return replace(record, number=max(self._records.numbers()) + 1, written_ms",
        ("tests/feed/test_consumers.py",),
    ),
    Bug(
        "a consumer goes on after rows that it was not given",
        "feed/consumers.py",
        "self._open(cursor, snapshot if",
        "self._open('latest', snapshot if",
        ("tests/feed/test_consumers.py",),
    ),
    # ------------------------------------------------------------------------------------------------------------- blobs
    Bug(
        "collection takes blobs beside entries that a checkpoint reads",
        "log/tail.py",
        "        if is_reserved(entry):\n            found.add",
        "        if is_reserved(entry) and entry.is_sentinel:\n            found.add",
        ("tests/blobs/test_blob_interop.py",),
    ),
    Bug(
        "collection takes blobs that an entry of the log names",
        "upkeep/gc.py",
        "shard.witness.current_generation):\n            return None\n        if generation > shard.mark:\n",
        "shard.witness.current_generation):\n            return 'orphan'\n        if generation > shard.mark:\n",
        ("tests/blobs/test_blob_interop.py",),
    ),
    Bug(
        "a blob that its file does not hold is shown as far as it goes",
        "log/blob_targets.py",
        "        if len(data) != length:\n",
        "        if len(data) > length:\n",
        ("tests/blobs/test_blob_interop.py",),
    ),
    # ---------------------------------------------------------------------------------------------------- partial updates
    Bug(
        "a partial update makes null what it does not name",
        "write/resolve.py",
        "    columns.update(zip(part.kept, map(found.__getitem__, part.kept_names), strict=True))\n",
        "    columns.update((name, pa.nulls(len(part.keys), schema.nullable.field(name).type)) for name in part.kept)\n",
        ("tests/writer/test_resolved_writes.py",),
    ),
    Bug(
        "a writer moves to new columns before its rows are flushed",
        "write/columns.py",
        '    shard.seal()\n    drain(shard, deadline, "the writer goes on with its old columns, retry")\n',
        "",
        ("tests/schema/test_schema_changes.py",),
    ),
    Bug(
        "generations that an earlier version named and did not record count twice",
        "lance/marks.py",
        "if number > marks.get(shard, 0)}",
        "if number < marks.get(shard, 0)}",
        ("tests/compact/test_compact_append_only.py",),
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
    # ------------------------------------------------------------------------------------------------- sequences, transactions
    Bug(
        "a late row is taken for a new one",
        "write/sequences.py",
        "return (noted is not None and lowest < noted) or (before is not None and lowest < before)",
        "return False",
        ("tests/writer/test_merge.py",),
    ),
    Bug(
        "an entry without a whole map ends the search for transactions",
        "log/transactions.py",
        "    return footer.seen is not None\n",
        "    return footer.written_ms is not None\n",
        ("tests/wal/test_transactions.py",),
    ),
    Bug(
        "an entry with digests of an earlier version is called unsupported",
        "log/footer.py",
        "value.keys() - _KNOWN_KEYS - _IGNORED_KEYS",
        "value.keys() - _KNOWN_KEYS",
        ("tests/format/test_wal_entry.py", "tests/golden"),
    ),
    Bug(
        "a second write_batch of a micro-batch is skipped as a repeat of the first",
        "spark/calls.py",
        "        if table in tables:\n",
        "        if table in tables and not tables:\n",
        ("tests/spark/test_batch_sink.py::test_a_second_call_for_one_table_is_refused_until_the_next_micro_batch",),
    ),
    # ------------------------------------------------------------------------------------------------ epochs used again
    Bug(
        "a parked shard is taken up again while an entry of the writer before is on its way",
        "serve/shared_shard.py",
        "self._parked = writer.park() if self._closed else None",
        "self._parked = (writer.abort(), parked)[1] if self._closed else None",
        ("tests/serve/test_shared_endings.py",),
    ),
    Bug(
        "a shard is parked while a memtable of it is flushed",
        "write/life.py",
        "            if shard.tables.frozen:  #",
        "            if shard.tables.frozen and not shard.tables.frozen:  #",
        ("tests/table/test_parked_shards.py",),
    ),
    Bug(
        "an interrupted leader does not poison the writer",
        "write/group_commit.py",
        '            self._health.poisoned("a commit was interrupted", interrupt)',
        "            del interrupt",
        ("tests/writer/test_interrupts.py",),
    ),
    Bug(
        "rows that were fitted to older columns are inserted",
        "write/group_commit.py",
        "        if schema is not self._schema:",
        "        if schema is None:",
        ("tests/writer/test_writer_schema_changes.py",),
    ),
    # --------------------------------------------------------------------------------------------------- unknown outcomes
    Bug(
        "an append that is stored is called undone",
        "process/trial.py",
        "        if not self.is_begun or not isinstance(error,",
        "        if self.is_begun or not isinstance(error,",
        ("tests/wal/test_append_once_shared_epoch.py",),
    ),
    Bug(
        "a write whose owner was slow, and then none any more, is called undone",
        "serve/caller.py",
        "                if was_sent:  # whether",
        "                if was_sent and not was_sent:  # whether",
        ("tests/serve/test_shared_endings.py",),
    ),
    # ----------------------------------------------------------------------------------------------- snapshots and their feeds
    Bug(
        "a snapshot shows rows that its feed tells once more",
        "read/tiers.py",
        "if all(mark < point.manifest.current_generation for point, mark in found):",
        "if found or not found:",
        ("tests/feed/test_consumers.py",),
    ),
    Bug(
        "a snapshot is used that collection has passed before it was named",
        "feed/consumers.py",
        "        self._write(replace(self.record, also=tuple(also)))\n        return self._is_whole(snapshot)\n",
        "        self._write(replace(self.record, also=tuple(also)))\n        return True\n",
        ("tests/feed/test_consumers_and_pins.py",),
    ),
    Bug(
        "collection takes a snapshot that a reader compares with",
        "upkeep/consumer_records.py",
        "named = ((record.snapshot, *record.also) for record in self.consumers)",
        "named = ((record.snapshot,) for record in self.consumers)",
        ("tests/feed/test_consumers_and_pins.py",),
    ),
    Bug(
        "a base version of then is chosen across a gap",
        "feed/time_travel.py",
        "if found is not None and version == newest:",
        "if found is not None:",
        ("tests/feed/test_as_of.py",),
    ),
)
