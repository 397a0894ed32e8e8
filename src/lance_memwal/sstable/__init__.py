"""A generation on storage: a small Lance dataset with a sidecar of its keys.

`write` makes a complete directory, which nobody knows until a manifest lists it. `read`, `generation` and `file` give its
rows back, `sidecar` and `bloom` say which keys it holds, `mirrors` says which indexes of the base table it carries.
"""
