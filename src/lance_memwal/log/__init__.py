"""One shard on storage: its manifest and its log.

`entry` is the bytes of a log entry, `manifest` the versions of the shard's manifest, which `invariants` guards. `wal`
claims a log, appends to it and reads it; `reading` finds and reads entries, `tail` says which of them no SSTable holds
yet, and `transactions` which writes were applied already. `blob_targets` finds the blobs of an entry. `shards` lists the shards.
"""
