"""Write the golden tables of several versions of pylance: one archive per version, made by that version alone.

Owns `tests/golden/pylance_versions`. `tests/kit/golden_tables.py` unpacks the archives. Run by hand once per version:

    python tests/golden/make_pylance_versions.py 9.0.1 11.0.0 12.0.0 13.0.0 14.0.2

Each version is installed into a temporary folder. Names inside the archives are random, so a new run gives other bytes;
the committed archives are the contract. Each table has base rows, two flushed generations, a tombstone in the first
generation and one in the log, and a log tail that no process flushed:

    plain      primary key `id`; field ids without a gap
    gap        column `a` was dropped before the shard was written, so field ids have a gap; a struct and a list
    readded    `b` and `c` were dropped and added again; base version 1 shows ids 1 and 2 as the dropped `b` and `c`
    blobs      a blob column; field ids without a gap
    gap_blobs  a blob column after a dropped column
    append     no primary key, no tombstones; field ids with a gap

`expected` returns the rows that a correct reader shows. Generations of versions before 13 carry field ids 0..n in column
order, so in `gap`, `readded`, `gap_blobs` and `append` these are not the ids of the table's columns. Their `_tombstone`
column even has the id of a table column in `readded`, `gap_blobs` and `append`. Log entries of versions before 13 carry
no ids.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

TARGET = Path(__file__).resolve().parent / "pylance_versions"
SHARD = "77777777-8888-4999-aaaa-bbbbbbbbbbbb"
ID = pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"})
PLAIN = pa.schema([ID, ("a", pa.string()), ("b", pa.string()), ("c", pa.string()), ("count", pa.int32())])
POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])
GAP = pa.schema(
    [ID, ("a", pa.string()), ("b", pa.string()), ("c", pa.string()), ("point", POINT), ("tags", pa.list_(pa.string()))]
)
READDED = pa.schema([ID, ("b", pa.string()), ("c", pa.string())])
IMAGE = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
BLOBS = pa.schema([ID, IMAGE, ("n", pa.string())])
GAP_BLOBS = pa.schema([ID, ("a", pa.string()), IMAGE, ("n", pa.string())])
APPEND = pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.string())])
SCHEMAS = {
    "plain": PLAIN,
    "gap": GAP,
    "readded": READDED,
    "blobs": BLOBS,
    "gap_blobs": GAP_BLOBS,
    "append": APPEND,
}
BASE, FIRST, SECOND, TAIL = "base", "first", "second", "tail"
# Which write a key was last part of. 3 is deleted in the first generation, 5 in the log.
LAST_WRITES = {1: TAIL, 2: FIRST, 4: SECOND, 6: TAIL, 7: BASE, 8: SECOND}
WRITES = {BASE: [1, 2, 3, 7], FIRST: [2, 4], SECOND: [4, 5, 8], TAIL: [1, 6]}
DELETES = {FIRST: [3], TAIL: [5]}


def row(schema: pa.Schema, key: int, write: str) -> dict[str, Any]:
    """The row of a key as one write gave it. Every column has its own values."""
    values: dict[str, Any] = {
        "id": key,
        "count": key * 10,
        "image": None if key == 8 else f"{write}-image-{key}".encode() * 3,
        "point": {"x": key * 10, "y": key * 100},
        "tags": [f"{write}-tag-{key}"] * (key % 3),
    }
    return {name: values.get(name, f"{write}-{name}-{key}") for name in schema.names}


def expected(table: str) -> list[dict[str, Any]]:
    """The rows of a golden table in the order of their keys, blobs as bytes; those of `append` in the order of `b`."""
    columns = pa.schema([field for field in SCHEMAS[table] if field.name != "a" or table == "plain"])
    if table == "append":
        rows = [row(columns, key, write) for write, keys in WRITES.items() for key in keys]
        return sorted(rows, key=lambda r: str(r["b"]))
    rows = [row(columns, key, write) for key, write in sorted(LAST_WRITES.items())]
    if table == "readded":  # the columns were added after the base rows were written
        rows = [{**r, "b": None, "c": None} if LAST_WRITES[r["id"]] == BASE else r for r in rows]
    return rows


def make_table(name: str, uri: str) -> None:
    schema = SCHEMAS[name]
    base = pa.Table.from_pylist([row(schema, key, BASE) for key in WRITES[BASE]], schema=schema)
    dataset = lance.write_dataset(base, uri, data_storage_version="2.1")
    if name == "readded":
        dataset.drop_columns(["b", "c"])
        dataset.add_columns(pa.schema([READDED.field("b"), READDED.field("c")]))
    elif name != "plain" and "a" in schema.names:
        dataset.drop_columns(["a"])
    lance.dataset(uri).initialize_mem_wal(unsharded=name == "append")
    for write in (FIRST, SECOND):
        writer = write_rows(uri, name, write)
        writer.close()
    # A process that ends without close leaves a log tail.
    subprocess.run([sys.executable, __file__, "leave-tail", name, uri], check=True)


def write_rows(uri: str, name: str, write: str) -> Any:
    dataset = lance.dataset(uri)
    writer = dataset.mem_wal_writer(SHARD, durable_write=True, max_wal_buffer_size=1, max_wal_flush_interval_ms=10)
    schema = pa.schema([SCHEMAS[name].field(column) for column in dataset.schema.names])
    writer.put(pa.Table.from_pylist([row(schema, key, write) for key in WRITES[write]], schema=schema))
    if name != "append" and write in DELETES:
        writer.delete(pa.table({"id": DELETES[write]}, schema=pa.schema([ID])))
    return writer


def make_version(root: Path) -> None:
    for name in SCHEMAS:
        make_table(name, str(root / name))


def pack(root: Path, archive: Path) -> None:
    """All files of a folder in one archive, without times and owners."""
    with tarfile.open(archive, "w:xz") as packed:
        for file in sorted(root.rglob("*")):
            if file.is_file():
                info = tarfile.TarInfo(str(file.relative_to(root)))
                data = file.read_bytes()
                info.size = len(data)
                packed.addfile(info, io.BytesIO(data))


def main(versions: list[str]) -> None:
    TARGET.mkdir(exist_ok=True)
    for version in versions:
        with tempfile.TemporaryDirectory() as scratch:
            old, tables = Path(scratch) / "pylance", Path(scratch) / "tables"
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(old)]
            subprocess.run([*install, f"pylance=={version}"], check=True)
            environment = {**os.environ, "PYTHONPATH": str(old)}
            subprocess.run([sys.executable, __file__, "tables", version, str(tables)], check=True, env=environment)
            pack(tables, TARGET / f"{version}.tar.xz")
        print(f"wrote {(TARGET / f'{version}.tar.xz').stat().st_size} bytes for pylance {version}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["leave-tail"]:
        write_rows(sys.argv[3], sys.argv[2], TAIL)
        os._exit(0)
    if sys.argv[1:2] == ["tables"]:
        if lance.__version__ != sys.argv[2]:
            sys.exit(f"this is pylance {lance.__version__}, not {sys.argv[2]}")
        make_version(Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
