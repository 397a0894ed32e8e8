"""What changed, and reads as of then.

`changes` is one feed over the logs of all shards, `consumers` are readers of it whose place is kept beside the table.

A caller names a moment (`moments`); `snapshots` says which snapshot is meant, for a time with `snapshot_time`, and `view`
reads it. `checkpoints` keep moments by name, and `diff` tells two of them apart.
"""
