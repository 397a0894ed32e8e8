"""Protobuf messages of the shard manifest and of the MemWAL index details.

Owns `mem_wal.proto`, the classes of its messages (`mem_wal_pb2`), and the bounded parse in `bounded.py`. Invariant: field
numbers and wire types are those of the public layout; the package name `memwal.format.v1` is ours alone.

After an edit of the `.proto` file run `python tools/compile_proto.py`.
"""
