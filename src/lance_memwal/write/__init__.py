"""Rows in: one writer per shard, and the order in which a put takes effect.

A put is fitted, joins the group commit (`group_commit`), is on storage, and then in the memtable (`state`). `flush` turns
frozen memtables into SSTables, `replay` rebuilds memory after a crash, `bulk` publishes what is too large for an entry,
and `once` appends from processes that own no writer.
"""
