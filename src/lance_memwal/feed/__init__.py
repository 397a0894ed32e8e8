"""What changed, and reads as of then.

`shard_changes` reads the log of one shard, `changed_rows` makes rows of it, and `changes` is one feed over all shards: from
where to where say `starts` and `cursor`. `before` adds the rows before their changes (`states` is the table at a cursor,
`past_rows` reads it in the columns of the feed). `consumers` are readers whose cursor is stored with the table.

A caller names a moment (`moments`); `snapshots` says which snapshot is meant, for a time with `snapshot_time`, and `view`
reads it. `checkpoints` keep moments by name, and `diff` tells two of them apart.
"""
