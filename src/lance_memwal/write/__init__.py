"""Rows in: one writer per shard, and the order in which a put takes effect.

`request` has the value of one write, `Write`, and the verbs over it, `Writable`. A writer is four parts (`shard`): `health`
refuses, `tables` hold the rows of memtables, `group_commit` brings writes into the log, and functions do the rest. A put
(`writes`) is fitted (`fitting`), queued (`queue`), in the memtable, and on storage when it returns. A write that depends on the
rows that are there (`changes` says how) looks them up (`live_rows`) and becomes whole rows (`resolve`, by `rules`): those of a
writer under its lock (`resolved`), those of an append without one in its retry loop (`admission`). In tables that put rows in
order, only late ones are looked up (`in_order`, `sequences`). `flush` turns frozen memtables into SSTables, `replay` rebuilds
memory after a crash, `bulk` publishes what is too large for an entry, `columns` follows the table, `life` begins and ends it.

Who appends to a log, and what each has (all own it by `claim`):

    ShardWriter (`life`)        memtables, threads, group commit; one process per epoch
    WAL-only (`tables.WalOnly`)  the same without memtables
    WalAppender (`appender`)     WAL-only without threads: one append, one entry
    OnceAppender (`once`)        shared epochs: many processes append; the tail is read, and may be dropped at any time

Shared writers, the verbs of a table and Spark append through one `TableAppender` per table and process (`table_appender`), whose
threads queue their writes (`append_queue`); `shared_shards` are the shards of a writer that shares them.
"""
