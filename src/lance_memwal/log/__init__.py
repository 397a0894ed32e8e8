"""One shard on storage: its manifest and its log.

`entry` is the bytes of a log entry, `manifest` the versions of the shard's manifest, which `invariants` guards. `wal`
claims a log, appends to it and reads it; `tail` says which entries no SSTable holds yet; `transactions` says which writes
are there already. `blob_targets` finds the blobs of an entry, `json_texts` makes texts of its JSON.
"""
