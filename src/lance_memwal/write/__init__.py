"""Rows in: one writer per shard, and the order in which a put takes effect.

A writer is four parts (`shard`): `health` refuses, `tables` hold the rows of memtables, `group_commit` brings writes into
the log, and functions do the rest. A put (`writes`) is fitted (`fitting`), queued (`queue`), in the memtable, and on storage
when it returns. `flush` turns frozen memtables into SSTables, `replay` rebuilds memory after a crash, `bulk` publishes what
is too large for an entry, `columns` follows the table, `life` begins and ends it. `once` appends from processes
that own no writer, `appender` without a buffer.
"""
