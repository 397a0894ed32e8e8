"""All that we know of Lance: datasets as the engine sees them, and the bytes that Lance's API does not reach.

`base` is one version of the base table. `manifest`, `wire` and `proto` read and make Lance's own files, `details` the
entry of the MemWAL index, `marks` says how far compaction has come, and `commit` makes a version that Lance's API cannot.
"""
