"""Compile `mem_wal.proto`: the descriptor in `mem_wal_pb2.py`, and the types of its classes in `mem_wal_pb2.pyi`.

Run it after an edit of the `.proto` file: `python tools/compile_proto.py`. It needs grpcio-tools.
"""

from __future__ import annotations

import re
import sys
import tempfile
from base64 import b85encode
from pathlib import Path

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from grpc_tools import protoc  # type: ignore[import-untyped]

PLACE = Path(__file__).resolve().parent.parent / "src" / "lance_memwal" / "lance" / "proto"
NAME = "mem_wal.proto"
WIDTH = 110


def compiled(out: Path) -> bytes:
    """The descriptor of the file, and in `out` the types of its classes."""
    made = out / "descriptors"
    status = protoc.main(["protoc", f"-I{PLACE}", f"--descriptor_set_out={made}", f"--pyi_out={out}", NAME])
    if status:
        raise SystemExit(status)
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")  # protoc adds it, nobody needs it
    return bytes(file.SerializeToString(deterministic=True))


def main() -> int:
    """Write both files anew."""
    with tempfile.TemporaryDirectory() as out:
        text = b85encode(compiled(Path(out))).decode()
        types = (Path(out) / "mem_wal_pb2.pyi").read_text()
    lines = [f'    b"{text[at : at + WIDTH]}"\n' for at in range(0, len(text), WIDTH)]
    module = PLACE / "mem_wal_pb2.py"
    renewed = re.sub(
        r"(?<=DESCRIPTOR_BYTES = \(\n).*?(?=^\)$)", lambda _: "".join(lines), module.read_text(), flags=re.S | re.M
    )
    module.write_text(renewed)
    types = types.replace("DESCRIPTOR: _descriptor.FileDescriptor", "DESCRIPTOR_BYTES: bytes")
    module.with_suffix(".pyi").write_text(f"# mypy: ignore-errors\n{types}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
