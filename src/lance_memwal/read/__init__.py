"""Rows out: one snapshot over all tiers, merged so that the newest row of a key wins.

`snapshot` captures memtables, manifests, tails and the base table, in that order, or pins what storage has as a value that
travels. `memory`, `fresh` and `merge` decide which rows count: in memory, in a shard, in the table; `base_rows` finds rows of
the base table. `scan`, `lookup` and `search` ask for them, `memory_scan` for those of one writer's memtables alone, and
`reader` always for the newest.
"""
