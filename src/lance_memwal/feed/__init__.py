"""What changed, and reads as of then.

`changes` is one feed over the logs of all shards, `consumers` are readers of it whose place is kept beside the table.
"""
