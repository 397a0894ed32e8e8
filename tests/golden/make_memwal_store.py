"""Write the golden store: tables with everything that one version of this package writes, and their expected rows.

Owns `tests/golden/memwal_stores`: `NAME.tar.xz` holds the tables of one version, `NAME.json` the rows that they show. Run by
hand with the source of that version, once:

    git archive COMMIT src | tar -x -C OLD
    PYTHONPATH=OLD/src:tests python tests/golden/make_memwal_store.py NAME

A later version must open the tables and show the same rows, also where it no longer writes such objects. The tables:

    ledger   composite key (text, int64), two shards, LastWrite with remembered deletes; JSON, UUID, dictionaries with 8 and
             16 bit indices, blobs; BTree and text indexes and their mirrors; transactions with digests from a Spark sink,
             own ids of appends (`memwal:...@birth`), joint epochs, a bulk write of a sink; a checkpoint; two consumers;
             columns that were added, renamed and dropped between writes
    rolled   text key; 34 generations, a bulk write, GC floors, a log tail, an epoch of a served owner that died
    events   no key, `Identity` sharding, parked shards, entries with several batches, a column added between entries
    crashed  a bulk marker whose generation was not published, rows staged by a job that died, a quarantined entry

The archive holds no path and no host name of the machine that made it.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from golden.make_pylance_versions import pack
from lance_memwal import crash_points
from lance_memwal.store import paths
from lance_memwal.write.once import OnceAppender

TARGET = Path(__file__).resolve().parent / "memwal_stores"
FOREVER = timedelta(days=36500)
SETTINGS = {"fsync": False, "stats_log_interval_ms": None}
IMAGE = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
LEDGER = pa.schema(
    [
        pa.field("tenant", pa.string(), False),
        pa.field("number", pa.int64(), False),
        pa.field("seq", pa.int64()),
        pa.field("amount", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("meta", pa.json_()),
        pa.field("ref", pa.uuid()),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        pa.field("label", pa.dictionary(pa.int16(), pa.string())),
        pa.field("gone", pa.string()),
        IMAGE,
    ]
)
EVENTS = pa.schema([pa.field("day", pa.string()), ("n", pa.int64()), ("kind", pa.dictionary(pa.int8(), pa.string()))])
ROLLED = pa.schema([pa.field("key", pa.string(), False), ("n", pa.int64())])
CRASHED = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
WORDS = ("amber", "basalt", "cedar")
"""Every row of `ledger` has one of these in its note."""
OWNED = {"owned": 1, "k02": 2002}


class Ledger:
    """The table `ledger`, and the rows that it must show."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        self.seq = 0
        self.columns = list(LEDGER.names)
        self.touched: set[tuple[str, int]] = set()  # keys that were written since `billing` committed

    def row(self, tenant: str, number: int, *, seq: int | None = None) -> dict[str, Any]:
        """A new row, with values that follow from its key and sequence."""
        self.seq += seq is None
        seq = self.seq if seq is None else seq
        row = {
            "tenant": tenant,
            "number": number,
            "seq": seq,
            "amount": number * 100 + seq,
            "note": f"{WORDS[(number + seq) % len(WORDS)]} note {number}",
            "meta": json.dumps({"number": number, "tags": [tenant, None]}),
            "ref": uuid.uuid5(uuid.NAMESPACE_URL, f"{tenant}/{number}"),
            "kind": f"kind-{number % 3}",
            "label": f"label-{seq % 5}",
            "gone": f"gone-{seq}",
            "image": None if number % 4 == 0 else f"image {tenant} {number} {seq}".encode(),
            "extra": seq * 2,
            "total": number * 100 + seq,
        }
        return {name: row[name] for name in self.columns}

    def take(self, *rows: dict[str, Any]) -> pa.Table:
        """Rows to write; from now on the table must show them."""
        for row in rows:
            self.rows[row["tenant"], row["number"]] = row
            self.touched.add((row["tenant"], row["number"]))
        return self.as_table(rows)

    def delete(self, writer: mw.TableWriter, *keys: tuple[str, int]) -> None:
        """Delete rows by the next sequence."""
        self.seq += 1
        writer.delete(list(keys), sequence=self.seq)
        for key in keys:
            del self.rows[key]
            self.touched.add(key)

    def as_table(self, rows: Any) -> pa.Table:
        fields = {
            **{field.name: field for field in LEDGER},
            "extra": pa.field("extra", pa.int32()),
            "total": pa.field("total", pa.int64()),
        }
        schema = pa.schema([fields[name] for name in self.columns])
        columns = [pa.array([_storage(row[f.name]) for row in rows], _storage_type(f.type)) for f in schema]
        return pa.table([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def shown(self) -> list[dict[str, Any]]:
        """The rows that it must show now, as JSON, in key order and in today's columns."""
        return [{name: _plain(row.get(name)) for name in self.columns} for _, row in sorted(self.rows.items())]


def _storage(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if kind == pa.uuid():
        return pa.binary(16)
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return str(value) if isinstance(value, uuid.UUID) else value


def make_ledger(uri: str) -> dict[str, Any]:
    ledger = Ledger(uri)
    base = ledger.take(*(ledger.row(tenant, number) for tenant in ("north", "south") for number in (1, 2, 3)))
    table = mw.create_table(
        uri,
        base,
        primary_key=["tenant", "number"],
        sharding=mw.Bucket("number", 2),
        merge=mw.LastWrite("seq", remember_deletes=FOREVER),
        writer_defaults=SETTINGS,
        allow_keys_across_shards=False,
    )
    table.indexes.create(mw.BTreeIndex("amount"))
    table.indexes.create(mw.FtsIndex("note"))
    with table.writer(compaction=None) as writer:
        writer.put(ledger.take(*(ledger.row("north", number) for number in (2, 4, 5, 6))), txn=("import", 1))
        writer.put(ledger.take(*(ledger.row("east", number) for number in (1, 2))), txn=("import", 2))
        writer.flush()
        ledger.delete(writer, ("north", 1), ("south", 3))
        writer.put(ledger.as_table([ledger.row("north", 1, seq=1), ledger.row("east", 2, seq=2)]))  # too late
    table.compact()
    with table.writer(compaction=None) as writer:
        writer.put(ledger.take(*(ledger.row("west", number) for number in range(1, 5))))
        writer.flush()
        ledger.delete(writer, ("west", 4))
        writer.put(ledger.take(ledger.row("north", 6)))
    checkpoint = {"rows": ledger.shown(), "columns": list(ledger.columns)}
    table.checkpoints.create("march")
    for _ in (billing := table.consumers.open("billing", start="snapshot", until="now", max_age=FOREVER)):
        billing.commit()
    ledger.touched.clear()
    table.consumers.open("fresh", start="latest", until="now", max_age=FOREVER).commit()
    with table.writer(compaction=None) as writer:  # after the consumer, before the columns change
        writer.put(ledger.take(ledger.row("west", 1)))
        writer.flush()
    change_columns(table, ledger)
    with table.writer(compaction=None) as writer:
        writer.put(ledger.take(ledger.row("west", 2), ledger.row("east", 7)))
        writer.flush()
    write_with_sinks(uri, ledger)
    writer = mw.open_table(uri).writer(compaction=None)
    writer.put(ledger.take(*(ledger.row("tail", number) for number in range(1, 5))))
    ledger.delete(writer, ("west", 3), ("tail", 4))
    writer.abort()  # these rows stay in the log
    return {
        "rows": ledger.shown(),
        "checkpoint": checkpoint,
        "after_billing": sorted(list(key) for key in ledger.touched),
        "words": {word: _keys_with(ledger, word) for word in WORDS},
        "transactions": {"import": 2, "load": 7},
        "deleted": [["north", 1], ["south", 3], ["tail", 4], ["west", 3], ["west", 4]],
    }


def _keys_with(ledger: Ledger, word: str) -> list[list[Any]]:
    return [list(key) for key, row in sorted(ledger.rows.items()) if word in row["note"]]


def change_columns(table: mw.Table, ledger: Ledger) -> None:
    """Drop `gone`, rename `amount` to `total`, and add `extra`."""
    table.dataset.drop_columns(["gone"])
    table.dataset.alter_columns({"path": "amount", "name": "total"})
    table.dataset.add_columns(pa.schema([("extra", pa.int32())]))
    ledger.columns = ["total" if name == "amount" else name for name in ledger.columns if name != "gone"] + ["extra"]
    for row in ledger.rows.values():
        row["total"] = row.pop("amount")
        row["extra"] = None


def write_with_sinks(uri: str, ledger: Ledger) -> None:
    """Appends of Spark sinks: a bulk write, one without a transaction, and one with a transaction and its digest."""
    from pyspark.sql import types as st

    import lance_memwal.spark as ms

    spark = ms.session("local[1]", **{"spark.ui.enabled": False, "spark.log.level": "ERROR"})
    simple = [("tenant", st.StringType()), ("number", st.LongType()), ("seq", st.LongType()), ("note", st.StringType())]
    schema = st.StructType([st.StructField(name, kind) for name, kind in simple])
    names = [name for name, _ in simple]
    writes: list[tuple[list[tuple[str, int]], dict[str, Any]]] = [
        ([("east", 9)], {"maxEntryBytes": 1}),
        ([("east", 8)], {}),
        ([("south", 8), ("south", 9)], {"txnAppId": "load", "txnVersion": 7}),
    ]
    for keys, options in writes:
        rows = [dict.fromkeys(ledger.columns) | {k: ledger.row(*key)[k] for k in names} for key in keys]
        ledger.take(*rows)
        frame = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)
        frame.write.format("memwal").mode("append").options(missing="null", upkeep="off", **options).save(uri)
    spark.stop()


def make_rolled(uri: str) -> dict[str, Any]:
    rows: dict[str, int] = {}
    table = mw.create_table(uri, ROLLED, primary_key="key", writer_defaults=SETTINGS | {"max_memtable_rows": 50})
    with table.writer(compaction=None) as writer:
        for number in range(34):
            write(writer, rows, {f"k{number % 20:02}": number, f"k{number % 7:02}": number})
            if number % 5 == 0:
                writer.delete([f"k{number % 20:02}"])
                del rows[f"k{number % 20:02}"]
            writer.flush()
        bulk = {f"bulk-{number:03}": number for number in range(120)}
        write(writer, rows, bulk)
        write(writer, rows, {"k01": 1001, "after": 1})
        writer.flush()
    subprocess.run([sys.executable, __file__, "--die-as-owner", uri], check=True)
    rows.update(OWNED)
    del rows["k03"]
    table.gc(grace_seconds=0)
    return {"rows": [{"key": key, "n": n} for key, n in sorted(rows.items())]}


def write(writer: mw.TableWriter, rows: dict[str, int], new: dict[str, int]) -> None:
    writer.put([{"key": key, "n": n} for key, n in new.items()])
    rows.update(new)


def die_as_owner(uri: str) -> None:
    """Serve the shard, write, and die: the record of the owner and the log tail stay."""
    socket.gethostname = lambda: "writer-1"
    writer = mw.open_table(uri).writer(shared=True, compaction=None)
    write(writer, {}, OWNED)
    writer.delete(["k03"])
    os._exit(0)


def make_events(uri: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    def some(count: int, **more: Any) -> list[dict[str, Any]]:
        new = [{"day": f"d{n % 3}", "n": len(rows) + n, "kind": f"kind-{n % 2}", **more} for n in range(count)]
        rows.extend(new)
        return new

    table = mw.create_table(uri, EVENTS, sharding=mw.Identity("day"), writer_defaults=SETTINGS)
    writer = table.writer(compaction=None, max_open_shards=1, commit_linger_ms=50)
    writer.put(some(6))
    writer.flush()
    for ack in [writer.put_nowait(some(3)) for _ in range(4)]:
        ack.wait()
    writer.put(some(3))
    writer.abort()  # parked shards keep their epochs, and their rows are in the log
    table.dataset.add_columns(pa.schema([("late", pa.string())]))
    with mw.open_table(uri).writer(compaction=None, max_open_shards=1) as writer:
        writer.put(some(2, late="yes"))
        writer.abort()
    return {"rows": sorted(({**row, "late": row.get("late")} for row in rows), key=lambda row: row["n"])}


class DiedError(Exception):
    """The process ends here."""


def make_crashed(uri: str) -> dict[str, Any]:
    table = mw.create_table(uri, CRASHED, primary_key="id", writer_defaults=SETTINGS)
    shard = mw.shard_id_for(mw.Unsharded())
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "text": "flushed"}])
    writer = table.writer(compaction=None)
    writer.put([{"id": 2, "text": "in the log"}])
    writer.put([{"id": 3, "text": "torn"}])
    writer.abort()
    newest = max((paths.parse_entry_name(f.name) or 0, f) for f in Path(uri, paths.wal_dir(shard)).iterdir())[1]
    newest.write_bytes(newest.read_bytes()[:-20])
    table.repair(dry_run=False)
    appender = OnceAppender(uri, max_entry_bytes=64)
    claim = appender.claim(shard)
    appender.append(claim, [pa.RecordBatch.from_pylist([{"id": 4, "text": "x" * 200}], schema=CRASHED)])

    def die(point: str) -> None:
        if point == "once.before_commit":
            raise DiedError

    crash_points.install(die)
    try:
        rows = pa.RecordBatch.from_pylist([{"id": 5, "text": "y" * 200}], schema=CRASHED)
        appender.append(claim, [rows], txn=("load", 1))
    except DiedError:
        crash_points.install(None)
    stage = table.location.store
    job = str(uuid.UUID(int=7))
    path = paths.stage_path(job, hashlib.sha256(b"staged").hexdigest())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, CRASHED) as stream:
        stream.write_batch(rows)
    stage.put_new(path, sink.getvalue().to_pybytes())
    shown = [(1, "flushed"), (2, "in the log"), (4, "x" * 200)]
    return {
        "rows": [{"id": key, "text": text} for key, text in shown],
        "rows_if_published": [{"id": key, "text": text} for key, text in [*shown, (5, "y" * 200)]],
    }


def main(name: str) -> None:
    TARGET.mkdir(exist_ok=True)
    expected = {}
    with tempfile.TemporaryDirectory() as scratch:
        for table, make in {
            "ledger": make_ledger,
            "rolled": make_rolled,
            "events": make_events,
            "crashed": make_crashed,
        }.items():
            expected[table] = make(str(Path(scratch) / table))
        pack(Path(scratch), TARGET / f"{name}.tar.xz")
    (TARGET / f"{name}.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    print(f"wrote {(TARGET / f'{name}.tar.xz').stat().st_size} bytes to {TARGET}")


if __name__ == "__main__":
    if sys.argv[1] == "--die-as-owner":
        die_as_owner(sys.argv[2])
    else:
        main(sys.argv[1])
