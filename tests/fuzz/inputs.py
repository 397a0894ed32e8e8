"""The inputs that mutations start from: honest bytes, as they are written, committed beside the decoders.

Owns the directory `corpus`, one folder per decoder. `python tests/fuzz --renew` writes what the builders make today. A file
whose bytes have changed stays, as `old-…`: what was written once must still be read.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path

PLACE = Path(__file__).resolve().parent / "corpus"


def committed(name: str) -> list[bytes]:
    """The inputs of a decoder, those of today first."""
    return [file.read_bytes() for file in sorted((PLACE / name).glob("*.bin"))]


def renew(name: str, built: Sequence[bytes]) -> int:
    """Let the corpus of a decoder begin with `built`; how many files are new."""
    folder, new = PLACE / name, 0
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(built):
        file = folder / f"{number:02d}.bin"
        if file.exists() and file.read_bytes() != data:
            file.rename(folder / f"old-{zlib.crc32(file.read_bytes()):08x}.bin")
        if not file.exists():
            file.write_bytes(data)
            new += 1
    return new
