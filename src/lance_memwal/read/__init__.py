"""Rows out: one snapshot over all tiers, merged so that the newest row of a key wins.

`tiers` captures memtables, manifests, tails and the base table, in that order; a `snapshot` names what storage has of
them, as a value that travels, and `rebuilt` makes them anew from it. `memory`, `fresh` and `merge` decide which rows
count: in memory, in a shard, in the table; `base_rows` finds rows of the base table. `scan`, `lookup` and `search` ask
for them, `memory_scan` for those of one writer's memtables alone, and `reader` always for the newest; `shard_alone`
where there is no base table yet, `late_rows` before a write. `order` sorts, `blobs` reads large values. `search` ranks
vectors (`vector_search`) and texts (`text_search`). Lance searches the texts of the base table without the
rows that fresh rows supersede (`superseded_rows`). `text_index` has the statistics by which it scores.
"""
