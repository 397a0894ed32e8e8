"""Golden tables: stores that other versions wrote, unpacked for one test.

Entry points: `pylance_table` unpacks a table of `tests/golden/pylance_versions`, `shown` reads all rows of a table in the
form of `make_pylance_versions.expected`.
"""

import tarfile
from pathlib import Path
from typing import Any

import lance_memwal as mw

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PYLANCE_VERSIONS = ("9.0.1", "11.0.0", "12.0.0", "13.0.0", "14.0.2")
# Generations of these versions carry field ids 0..n in column order, not the ids of the table's columns.
POSITIONAL_VERSIONS = PYLANCE_VERSIONS[:3]


def pylance_table(version: str, name: str, directory: Path) -> str:
    """Unpack one table that this pylance wrote below `directory`, and return its URI."""
    unpack(GOLDEN / "pylance_versions" / f"{version}.tar.xz", directory, f"{name}/")
    return str(directory / name)


def unpack(archive: Path, directory: Path, prefix: str) -> None:
    """Write the files of an archive whose names start with `prefix` below `directory`."""
    with tarfile.open(archive) as packed:
        packed.extractall(directory, [m for m in packed if m.name.startswith(prefix)], filter="data")


def shown(table: mw.Table) -> list[dict[str, Any]]:
    """All rows of a golden table: blobs as bytes, in the order of their keys, or of `b` where there is no key."""
    rows = table.scan().to_table().to_pylist()
    for row in rows:
        if "image" in row:
            blob = table.get_blob(row["id"], "image")
            row["image"] = blob and blob.read()
    return sorted(rows, key=lambda row: str(row["b"]) if "id" not in row else row["id"])
