"""What changed, and reads as of then.

`shard_changes` reads the log of one shard, `changed_rows` makes rows of it, and `changes` is one feed over all shards: from
where to where say `starts` and `cursor`. `before` adds the rows before their changes (`past_rows` reads
them in the columns of the feed). `consumers` are readers whose cursor is stored with the table.

A caller names a snapshot, a checkpoint, a time or a version. `time_travel` finds its snapshot, and `view` reads it.
`checkpoints` keep snapshots by name, and `diff` compares two of them.
"""
