"""All that we know of Lance: datasets as the engine sees them, and the bytes that Lance's API does not reach.

`base` is one version of the base table, `identity` whether it is still the same table, `restored` whether it went back.
`manifest`, `transaction`, `deletions`, `wire` and `proto` read and make Lance's own files, `damage` says what is wrong with
them. `details` and `mem_wal_index` are the entry of the MemWAL index, `marks` how far compaction has come, `primary_key` the
key. `commit` puts rows and progress into the base table together: by a version that Lance's API cannot make (`hand_made`)
where that is safe, with the rows that newer ones replace (`superseded`), the ids that rows keep (`row_ids`) and the files that
wait for it (`prepared`). `optimize` is what Lance does itself to keep a table in shape.
"""
