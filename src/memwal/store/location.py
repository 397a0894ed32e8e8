"""Where a table lives: its URI, its options, its store, and the URIs of Lance datasets below it.

Owns `Location`, the value that every part of the engine is handed. Invariants:

1. Child URIs are built structurally (a query part of the root stays behind the path), never by joining strings
   elsewhere, and every child open gets the same storage options.
2. Storage options never appear in `repr` or in an error.
3. `store_once` is the same store as `store` without retries, for callers that have a retry protocol of their own (the WAL).

Called by: the table facade, the writer, the reader; created with `resolve`.
"""
