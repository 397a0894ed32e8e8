"""Plants one hostile thing in an honest table, and uses the table in a process with little memory.

Owns `use_hostile_table`, which tells what each use answered; an error that is not ours, or none at all from a process that was
killed, is what the test looks for. Rows that are more than the memory may be a `MemoryError`; bytes that ask for more than they
may have must not.
"""

import faulthandler
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.clock import BackOff
from lance_memwal.errors import CorruptDataError, MemWalError
from lance_memwal.log.entry import MAX_ENTRY_BYTES, encode_sentinel
from lance_memwal.rows.ipc_frames import stream_of
from lance_memwal.store import paths, sequenced
from lance_memwal.store.location import resolve
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter
from tests.fuzz.little_memory import limit_memory, most_mib

HEADROOM_BYTES = 512 << 20
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def table_at(place: Path) -> mw.Table:
    """A table with rows in its base, in an SSTable and in its log."""
    table = mw.create_table(str(place), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        for number in range(3):
            writer.put([{"id": number, "v": "a"}])
            if number < 2:
                writer.flush()
            if number == 0:
                table.compact()
        writer.abort()
    return table


def shard_dir(place: Path) -> Path:
    return place / paths.shard_dir(mw.shard_id_for(mw.Unsharded()))


def newest(folder: Path, suffix: str) -> Path:
    return max(folder.glob(f"*{suffix}"), key=lambda file: file.stat().st_mtime_ns)


def next_entry(place: Path, data: bytes) -> None:
    shard = mw.shard_id_for(mw.Unsharded())
    taken = len(list((place / paths.wal_dir(shard)).glob("*.arrow")))
    tip = mw.WalTailer(str(place), shard).next_position()
    assert tip > taken >= 0
    (place / paths.wal_entry_path(shard, tip)).write_bytes(data)


def stream(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    marked = batch.replace_schema_metadata({"writer_epoch": "1"})
    return bytes(stream_of(marked.schema, [marked], compression=compression))


def path_that_leads_out(place: Path) -> None:
    file = newest(shard_dir(place) / "manifest", ".binpb")
    data = file.read_bytes()
    at = data.rindex(b"_gen_") - 8
    file.write_bytes(data[:at] + b"../../../etc/x"[:14].ljust(14, b"/") + data[at + 14 :])


def absolute_path(place: Path) -> None:
    file = newest(shard_dir(place) / "manifest", ".binpb")
    data = file.read_bytes()
    at = data.rindex(b"_gen_") - 8
    file.write_bytes(data[:at] + b"/etc/passwd\0\0\0" + data[at + 14 :])


def linked_log(place: Path) -> None:
    log = shard_dir(place) / "wal"
    os.rename(log, place.parent / "elsewhere")
    os.symlink(place.parent / "elsewhere", log)


def linked_manifest(place: Path) -> None:
    file = newest(shard_dir(place) / "manifest", ".binpb")
    os.rename(file, place.parent / "elsewhere")
    os.symlink(place.parent / "elsewhere", file)


def linked_shard(place: Path) -> None:
    os.rename(shard_dir(place), place.parent / "elsewhere")
    os.symlink(place.parent / "elsewhere", shard_dir(place))


def linked_data_of_an_sstable(place: Path) -> None:
    file = newest(max(shard_dir(place).glob("*_gen_2")) / "data", ".lance")
    os.rename(file, place.parent / "elsewhere")
    os.symlink(place.parent / "elsewhere", file)


def linked_data_of_the_base(place: Path) -> None:
    file = newest(place / "data", ".lance")
    os.rename(file, place.parent / "elsewhere")
    os.symlink(place.parent / "elsewhere", file)


def strange_names(place: Path) -> None:
    for folder in (shard_dir(place), shard_dir(place) / "wal", shard_dir(place) / "manifest", place / "_mem_wal"):
        for name in ("..\\x", "a\nb", "%2e%2e", "9" * 200, "-1.json", "\udcff.arrow", "1e5.binpb"):
            (folder / name).write_bytes(b"x")


def _zeros() -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), 40_000_000, [None, pa.allocate_buffer(320_000_000)])


def compression_bomb(place: Path) -> None:
    """A hundred kilobytes that become more than an entry may have."""
    zeros = _zeros()
    columns = MAX_ENTRY_BYTES // zeros.nbytes + 1
    data = stream(pa.record_batch([zeros] * columns, names=["id", *map(str, range(1, columns))]), "zstd")
    assert len(data) < 500_000
    next_entry(place, data)


def more_rows_than_memory(place: Path) -> None:
    """A whole entry, which says nothing wrong: there are so many rows."""
    next_entry(place, stream(pa.record_batch({"id": _zeros()}), "zstd"))


def rows_that_cost_nothing(place: Path) -> None:
    nulls = pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None])
    next_entry(place, stream(pa.record_batch([nulls], names=["n"])))


def deep_columns(place: Path) -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(2_000):
        kind = pa.list_(kind)
    schema = pa.schema([("deep", kind)], metadata={"writer_epoch": "1"})
    next_entry(place, bytes(schema.serialize()) + b"\xff\xff\xff\xff\0\0\0\0")


def huge_epoch(place: Path) -> None:
    next_entry(place, encode_sentinel((1 << 64) - 1, EntryFooter(written_ms=(1 << 63) - 1)))


def nested_records(place: Path) -> None:
    for folder in ("memwal_consumers/c", "memwal_checkpoints/c"):
        (place / folder).mkdir(parents=True)
        (place / folder / "1.json").write_bytes(b'{"format":1,"shards":' + b'{"a":' * 100_000)
    floor = place / paths.floor_dir(mw.shard_id_for(mw.Unsharded()))
    floor.mkdir(parents=True, exist_ok=True)
    (floor / "999999.json").write_bytes(b'{"position":' + b"9" * 4_000 + b"}")


CASES: dict[str, Callable[[Path], None]] = {
    case.__name__: case
    for case in (
        path_that_leads_out,
        absolute_path,
        linked_log,
        linked_manifest,
        linked_shard,
        linked_data_of_an_sstable,
        linked_data_of_the_base,
        strange_names,
        compression_bomb,
        more_rows_than_memory,
        rows_that_cost_nothing,
        deep_columns,
        huge_epoch,
        nested_records,
    )
}


def answer_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except MemWalError as error:
        return type(error).__name__
    except MemoryError:
        return "out of memory"
    except BaseException:
        return f"NOT OURS\n{traceback.format_exc()[-1_500:]}"
    return "answered"


def verify(table: mw.Table) -> None:
    """What verify finds is its way to refuse."""
    for problem in table.verify().problems:
        raise CorruptDataError(str(problem))


def use_hostile_table(case: str, place: Path, pipe: Connection) -> None:
    """Send (use, answer) for each use, then by how many MiB memory grew at most, and ("done",)."""
    faulthandler.enable()
    planter = os.fork()  # whoever uses the table has not seen it before
    if planter == 0:
        table_at(place)
        CASES[case](place)
        os._exit(0)
    assert os.waitpid(planter, 0)[1] == 0
    limit_memory(HEADROOM_BYTES)
    before = most_mib()
    sequenced.RETRY = BackOff(0.0, 0.0)  # what is hostile is so at every try
    table = mw.open_table(resolve(str(place), clock=SkippingClock()))

    def use(what: str, call: Callable[[], Any]) -> None:
        pipe.send((what, answer_of(call)))

    use("scan", lambda: table.scan().to_table())
    use("get", lambda: table.get(1))
    use("count", table.count_rows)
    use("changes", lambda: list(table.changes(until="now")))
    use("consumers", lambda: (table.consumers.list(), table.checkpoints.list()))
    use("stats", table.stats)
    use("gc", lambda: table.gc(grace_seconds=0))
    use("verify", lambda: verify(table))
    use("repair", lambda: table.repair(dry_run=True))

    def write() -> None:
        with table.writer(compaction=None) as writer:
            writer.put([{"id": 9, "v": "z"}])

    use("write", write)
    pipe.send(("grown", str(most_mib() - before)))
    pipe.send(("done",))
    os._exit(0)
