"""Protobuf messages of the shard manifest and of the MemWAL index details.

Owns `mem_wal.proto`, the code generated from it, and the bounded parse in `bounded.py`. Invariant: field numbers and
wire types are those of the public layout; the package name `memwal.format.v1` is ours alone.

Regenerate (`proto`), after an edit of the `.proto` file, from the root of the repository:

    python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/lance_memwal/format/proto/mem_wal.proto
    sed -i '1i # mypy: ignore-errors' src/lance_memwal/format/proto/mem_wal_pb2.pyi
    ruff format src/lance_memwal/format/proto
"""
