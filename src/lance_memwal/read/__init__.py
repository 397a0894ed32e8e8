"""Rows out: one snapshot over all tiers, merged so that the newest row of a key wins.

`snapshot` captures memtables, manifests, tails and the base table, in that order. `merge` decides which rows count, `scan`,
`lookup` and `search` ask for them.
"""
