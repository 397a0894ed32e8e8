"""A generation on storage: a small Lance dataset with a sidecar of its keys.

`write` makes a complete directory, which nobody knows until a manifest lists it. `read` gives its rows back, `fold` those of
several generations, newest row per key; `several` finds keys in many. `target` says what a shard writes to.
`sidecar` and `bloom` say which keys it holds, `mirrors` says which indexes of the base table it carries,
`maintained` which ones the table wants, and `catch_up` how long they need it. `deletes` are those that outlive compaction.
"""
