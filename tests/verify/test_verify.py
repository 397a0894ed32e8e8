"""Verify finds every kind of damage in any file, link or copy, says where it is, and finds none where there is none."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

import lance_memwal as mw
from lance_memwal.lance.manifest import version_path
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.log.reading import list_positions
from lance_memwal.process.cache import CACHE
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.types import ShardManifest

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    """Three generations, of which one is compacted, a takeover, and a tail of three entries."""
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    with table.writer(compaction=None) as writer:
        for number in range(3):
            writer.put({"id": [number, 10 + number], "v": ["x", "y"]})
            writer.flush()
    table.compact(max_generations=1)
    writer = table.writer(compaction=None)
    for number in range(3):
        writer.put({"id": [100 + number], "v": ["tail"]})
    writer.abort()
    return table


def root(table: mw.Table) -> Path:
    return Path(table.uri)


def entry(table: mw.Table, at: int) -> Path:
    return root(table) / paths.wal_entry_path(SHARD, list_positions(resolve(table.uri), SHARD)[at])


def newest(table: mw.Table) -> ShardManifest:
    manifest = ShardManifestStore(table.uri, SHARD).read_latest()
    assert manifest is not None
    return manifest


def sstable(table: mw.Table) -> Path:
    return root(table) / paths.sstable_dir(SHARD, newest(table).sstables[0].path)


def manifest_file(table: mw.Table) -> Path:
    return root(table) / paths.manifest_path(SHARD, newest(table).version)


def commit(table: mw.Table, change: Callable[[ShardManifest], ShardManifest]) -> None:
    """Write the next manifest by hand, past every check."""
    manifest = change(replace(newest(table), version=newest(table).version + 1))
    path = root(table) / paths.manifest_path(SHARD, manifest.version)
    path.write_bytes(encode_manifest(manifest))


def test_a_sound_table_has_no_problems(table: mw.Table) -> None:
    report = table.verify()
    assert report.problems == []
    assert (report.shards, report.entries, report.sstables) == (1, 8, 2)


def _rewrite(at: int, changed: Callable[[bytes], bytes]) -> Callable[[mw.Table], None]:
    """Damage that rewrites the entry at an index of the log."""

    def damage(table: mw.Table) -> None:
        entry(table, at).write_bytes(changed(entry(table, at).read_bytes()))

    return damage


def _commit(**changes: Any) -> Callable[[mw.Table], None]:
    """Damage that is one commit with these changes."""
    return lambda table: commit(table, lambda m: replace(m, **changes))


def _foreign(name: str) -> Callable[[mw.Table], None]:
    """Damage that replaces a part of the first SSTable by that of the second."""

    def damage(table: mw.Table) -> None:
        here, other = sstable(table) / name, root(table) / paths.sstable_dir(SHARD, newest(table).sstables[1].path)
        if here.is_dir():
            shutil.rmtree(here)
            shutil.copytree(other / name, here)
        else:
            shutil.copy(other / name, here)

    return damage


def _forgotten_generation(table: mw.Table) -> None:
    commit(table, lambda m: replace(m, sstables=m.sstables[1:]))


def _marked_too_far(table: mw.Table) -> None:
    builder = lance.dataset(table.uri).merge_insert("id").when_not_matched_insert_all()
    builder.mark_sstables_as_compacted([CompactedSsTable(SHARD, 99)]).execute(table.schema.empty_table())


def _wrong_row_count(table: mw.Table) -> None:
    commit(table, lambda m: replace(m, sstables=(replace(m.sstables[0], physical_rows=77), *m.sstables[1:])))


DAMAGE: list[tuple[str, Callable[[mw.Table], object], str]] = [
    ("cut", _rewrite(-1, lambda data: data[:-9]), "V-3"),
    ("empty", _rewrite(-1, lambda data: b""), "V-3"),
    (
        "flip",
        _rewrite(
            -2, lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        ),
        "V-3",
    ),
    ("gap", lambda table: entry(table, -2).unlink(), "V-4"),
    ("manifest bytes", lambda table: manifest_file(table).write_bytes(b"\xff\xff\xff"), "V-1"),
    ("no manifest", lambda table: shutil.rmtree(root(table) / paths.manifest_dir(SHARD)), "V-1"),
    ("lower epoch", _commit(writer_epoch=1), "V-2"),
    ("lower epoch", _commit(writer_epoch=1), "V-5"),
    ("cursor falls", _commit(replay_after_wal_entry_position=1), "V-2"),
    ("cursor falls", _commit(replay_after_wal_entry_position=1), "V-10"),
    ("skipped generation", _commit(current_generation=2, sstables=()), "V-6"),
    ("forgotten generation", _forgotten_generation, "V-7"),
    ("marked too far", _marked_too_far, "V-9"),
    ("lost SSTable", lambda table: shutil.rmtree(sstable(table)), "V-8"),
    ("lost filter", lambda table: (sstable(table) / "bloom_filter.bin").unlink(), "V-8"),
    ("lost sidecar", lambda table: shutil.rmtree(sstable(table) / "_pk_index"), "V-8"),
    ("foreign sidecar", _foreign("_pk_index"), "V-8"),
    ("foreign filter", _foreign("bloom_filter.bin"), "V-8"),
    ("lost data", lambda table: shutil.rmtree(sstable(table) / "data"), "V-8"),
    ("wrong row count", _wrong_row_count, "V-8"),
    ("overwritten", lambda table: lance.write_dataset(table.schema.empty_table(), table.uri, mode="overwrite"), "V-11"),
]


@pytest.mark.parametrize(("damage", "invariant"), [case[1:] for case in DAMAGE], ids=[f"{d[0]} {d[2]}" for d in DAMAGE])
def test_damage_is_found_and_named(table: mw.Table, damage: Callable[[mw.Table], object], invariant: str) -> None:
    damage(table)
    report = table.verify()
    assert not report.ok
    assert invariant in {problem.invariant for problem in report.problems}, report.problems
    assert all(problem.where and problem.what and problem.remedy for problem in report.problems)


def test_a_sound_table_stays_sound_beside_a_busy_writer(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    with table.writer(compaction=None, max_memtable_rows=5) as writer:
        for number in range(60):
            writer.put({"id": [number % 7], "v": [str(number)]})
            if number % 6 == 0:
                assert table.verify().problems == []
            if number % 20 == 19:
                table.compact()
                table.gc(grace_seconds=0)


COPIED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def copy_file(file: Path, source: Path, target: Path) -> None:
    place = target / file.relative_to(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(file, place)
    except FileNotFoundError:  # a temporary file, which has its name by now
        place.unlink(missing_ok=True)


def copy_manifests_first(source: Path, target: Path, order: random.Random) -> None:
    """Every file, those of a `manifest` directory before all others; each part is listed when its turn comes."""
    for part in ("_mem_wal/*/manifest/*", "**/*"):
        files = [
            file for file in source.glob(part) if file.is_file() and not (target / file.relative_to(source)).exists()
        ]
        order.shuffle(files)
        for file in files:
            if part != "**/*" and file.name.startswith("version_hint"):
                continue
            copy_file(file, source, target)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_of_a_table_that_is_written_is_whole(tmp_path: Path, seed: int) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), COPIED, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False}
    )
    acknowledged, stop = 0, threading.Event()

    def write() -> None:
        nonlocal acknowledged
        with table.writer(compaction=None) as writer:
            while not stop.is_set():
                writer.put([{"id": acknowledged * 10 + n, "v": "x"} for n in range(10)])
                acknowledged += 1
                if acknowledged % 7 == 0:
                    writer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while acknowledged < 20:
            stop.wait(0.01)
        before = acknowledged
        copy_manifests_first(tmp_path / "t", tmp_path / "copy", random.Random(seed))
    finally:
        stop.set()
        thread.join()
    copy = mw.open_table(str(tmp_path / "copy"))
    report = copy.verify()
    assert report.ok, report
    keys = set(copy.scan(["id"]).to_table()["id"].to_pylist())
    assert keys >= set(range(before * 10))
    with copy.writer() as writer:
        writer.put([{"id": -1, "v": "new"}])
    assert copy.get(-1) == {"id": -1, "v": "new"}
    assert copy.verify().ok


def _one_file(root: Path, pattern: str) -> Path:
    (found,) = (root / "t" / "_mem_wal").glob(pattern)
    return found


def test_a_generation_without_flags_is_damage_in_every_tier_and_no_delete_becomes_a_row(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, pa.table({"id": [0, 1], "v": ["w0", "w1"]}, schema=SCHEMA), primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.delete([1])
        writer.put([{"id": 2, "v": "b"}])
    manifest = _one_file(tmp_path, "*/*_gen_1/_versions/*.manifest")
    manifest.write_bytes(manifest.read_bytes().replace(b"_tombstone", b"_tombstonf"))
    for call in (lambda: mw.open_table(uri).compact(), lambda: mw.open_table(uri).scan().to_table()):
        with pytest.raises(mw.CorruptDataError):
            call()
    assert [problem for problem in mw.open_table(uri).verify().problems if "_tombstone" in problem.what]
    assert lance.dataset(uri).count_rows() == 2


def test_a_field_that_was_dropped_inside_a_struct_is_not_called_damage(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    table = mw.create_table(uri, pa.schema([("id", pa.int64()), ("s", inner)]), primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "s": {"x": 1, "y": "a"}}])
    lance.dataset(uri).drop_columns(["s.x"])
    assert mw.open_table(uri).verify().ok
    assert mw.open_table(uri).scan().to_table().to_pylist() == [{"id": 1, "s": {"y": "a"}}]
    mw.open_table(uri).compact()
    assert lance.dataset(uri).to_table().to_pylist() == [{"id": 1, "s": {"y": "a"}}]


def test_compaction_names_a_listed_generation_that_is_not_there(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, SCHEMA, primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 2, "v": "b"}])
    _one_file(tmp_path, "*/*_gen_1/_versions/*.manifest").unlink()
    with pytest.raises(mw.CorruptDataError, match="not there"):
        mw.open_table(uri).compact()


DAMAGED = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base table with deleted rows, a generation with replaced rows, and a tail."""
    place = tmp_path_factory.mktemp("whole") / "t"
    defaults = {"fsync": False}
    table = mw.create_table(str(place), DAMAGED, primary_key="id", sharding=mw.Unsharded(), writer_defaults=defaults)
    writer = table.writer(compaction=None)
    for rows in ([0, 1, 2, 3], [1]):
        writer.put({"id": rows, "v": ["a"] * len(rows)})
        writer.flush()
        table.compact()
    writer.put({"id": [5, 6], "v": ["b", "b"]})
    writer.put({"id": [5], "v": ["c"]})
    writer.flush()
    writer.put({"id": [9], "v": ["tail"]})
    writer.abort()
    assert table.verify().ok
    return place


def _generation(place: Path) -> Path:
    manifest = ShardManifestStore(str(place), SHARD).read_latest()
    assert manifest is not None
    return place / paths.sstable_dir(SHARD, manifest.sstables[-1].path)


def _one(place: Path, pattern: str) -> Path:
    return sorted(place.glob(pattern))[0]


def _newest_manifest(place: Path) -> Path:
    return place / paths.manifest_path(SHARD, ShardManifestStore(str(place), SHARD).list_versions()[-1])


FILES: dict[str, Callable[[Path], Path]] = {
    "log entry": lambda place: place / paths.wal_entry_path(SHARD, list_positions(resolve(str(place)), SHARD)[-1]),
    "shard manifest": _newest_manifest,
    "SSTable data": lambda place: _one(_generation(place), "data/*.lance"),
    "SSTable manifest": lambda place: _one(_generation(place), "_versions/*.manifest"),
    "SSTable deletions": lambda place: _one(_generation(place), "_deletions/*"),
    "bloom filter": lambda place: _generation(place) / "bloom_filter.bin",
    "sidecar pages": lambda place: _generation(place) / "_pk_index" / "page_data.lance",
    "sidecar lookup": lambda place: _generation(place) / "_pk_index" / "page_lookup.lance",
    "base manifest": lambda place: _one(place, "_versions/*.manifest"),
    "base data": lambda place: _one(place, "data/*.lance"),
    "base deletions": lambda place: _one(place, "_deletions/*"),
}
CHANGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "inverted": lambda data: bytes(byte ^ 0xFF for byte in data),
    "gone": lambda data: None,
}
READS: dict[str, Callable[[mw.Table], object]] = {
    "scan": lambda table: table.scan().to_table(),
    "filter": lambda table: table.scan(filter="v = 'c'").to_table(),
    "get": lambda table: table.get(5),
    "lookup": lambda table: table.lookup([0, 3]),
    "count": lambda table: table.count_rows(),
    "compact": lambda table: table.compact(),
    "collect": lambda table: table.gc(dry_run=True),
    "open": lambda table: table.shard_writer().close(),
}
UNSEEN = {("log entry", "gone"), ("shard manifest", "gone")}  # nothing says that there was something newer


def damaged(whole: Path, place: Path, kind: str, damage: str) -> str:
    """A copy of the table with one damaged file; returns the file's path inside the table."""
    shutil.copytree(whole, place)
    path = FILES[kind](place)
    changed = CHANGES[damage](path.read_bytes())
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    CACHE.clear()
    return str(path.relative_to(place))


@pytest.mark.repro("reads-10")
@pytest.mark.parametrize("damage", CHANGES)
@pytest.mark.parametrize("kind", FILES)
def test_damage_is_reported_as_damage(whole: Path, tmp_path: Path, kind: str, damage: str) -> None:
    path = damaged(whole, tmp_path / "t", kind, damage)
    table = mw.open_table(str(tmp_path / "t"), for_repair=True)
    before = {item: item.read_bytes() for item in (tmp_path / "t").rglob("*") if item.is_file()}
    for problems in (table.verify().problems, table.repair().problems):
        assert bool(problems) == ((kind, damage) not in UNSEEN)
        assert all(problem.where and problem.what and problem.remedy for problem in problems)
        named = [problem for problem in problems if path.startswith(problem.where) or path in problem.what]
        assert named or not problems or damage == "gone"
    assert {item: item.read_bytes() for item in (tmp_path / "t").rglob("*") if item.is_file()} == before
    for name, read in READS.items():
        if name == "compact" and damage == "gone" and "SSTable" in kind:
            continue  # it tries again for a quarter of a minute: the generation may have been compacted by another
        CACHE.clear()
        try:
            read(mw.open_table(str(tmp_path / "t")))
        except mw.InvalidInputError as error:
            pytest.fail(f"{name} calls it the caller's fault: {error}")
        except mw.MemWalError:
            continue


@pytest.mark.repro("reads-10")
@pytest.mark.parametrize("kind", ["SSTable data", "base data", "SSTable deletions", "base deletions", "base manifest"])
@pytest.mark.parametrize("damage", ["cut", "zeroed", "empty"])
def test_a_read_of_a_damaged_file_says_which_one_it_is(whole: Path, tmp_path: Path, kind: str, damage: str) -> None:
    path = damaged(whole, tmp_path / "t", kind, damage)
    with pytest.raises(mw.CorruptDataError) as caught:
        mw.open_table(str(tmp_path / "t")).scan().to_table()
    assert caught.value.path == path


def test_a_filter_that_lance_refuses_is_still_the_callers_fault(whole: Path) -> None:
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(str(whole)).scan(filter="no_such_column = 1").to_table()


UNSHARDED = mw.shard_id_for(mw.Unsharded())
STRANGER = "11111111-1111-4111-8111-111111111111"
NEWER = version_path(615)
PLAIN = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row in the base table, one in a generation, one in the log, and a checkpoint."""
    place = tmp_path_factory.mktemp("whole") / "t"
    table = mw.create_table(str(place), PLAIN, primary_key="id", writer_defaults={"fsync": False})
    writer = table.writer(compaction=None)
    for number in range(2):
        writer.put([{"id": number, "v": 1}])
        writer.flush()
        if number == 0:
            table.compact()
    writer.put([{"id": 2, "v": 1}])
    table.checkpoints.create("cp")
    writer.abort()
    assert table.verify().ok
    return place


@pytest.fixture
def place(checkpointed: Path, tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return Path(shutil.copytree(checkpointed, tmp_path / "t"))


def linked(path: str) -> Callable[[Path], str]:
    """Put a link to elsewhere in the place of what lies at `path`."""

    def plant(place: Path) -> str:
        shutil.rmtree(place / path, ignore_errors=True)
        (place / path).symlink_to(place.parent / "elsewhere")
        return path

    return plant


def linked_entry(place: Path) -> str:
    path = paths.wal_entry_path(UNSHARDED, list_positions(resolve(str(place)), UNSHARDED)[-1])
    shutil.move(place / path, place.parent / "entry")
    (place / path).symlink_to(place.parent / "entry")
    return path


PLACES: dict[str, Callable[[Path], str]] = {
    "a strange shard": linked(paths.shard_dir(STRANGER)),
    "the shard": linked(paths.shard_dir(UNSHARDED)),
    "the log": linked(paths.wal_dir(UNSHARDED)),
    "the manifests": linked(paths.manifest_dir(UNSHARDED)),
    "the floor": linked(paths.floor_dir(UNSHARDED)),
    "the consumers": linked(paths.CONSUMERS_DIR),
    "the checkpoints": linked(paths.CHECKPOINTS_DIR),
    "an entry": linked_entry,
}


@pytest.mark.parametrize("what", PLACES)
def test_a_link_in_the_place_of_a_directory_is_reported_and_not_raised(place: Path, what: str) -> None:
    path = PLACES[what](place)
    table = mw.open_table(str(place))
    report = table.verify()
    assert not report.ok
    assert any(path in f"{problem.where} {problem.what}" for problem in report.problems), report.problems
    repaired = table.repair(dry_run=False, accept_loss=True)
    assert os.path.islink(place / path), "what nobody can read is not replaced"
    assert not any(action.done for action in repaired.actions)


def test_who_writes_to_other_shards_goes_on_beside_a_link(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, PLAIN, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False})
    (tmp_path / "t" / paths.MEM_WAL_DIR).mkdir(exist_ok=True)
    linked(paths.shard_dir(STRANGER))(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        writer.put([{"id": number, "v": 1} for number in range(8)])
        writer.flush()
    with pytest.raises(mw.CorruptDataError, match=STRANGER):
        table.count_rows()
    (tmp_path / "t" / paths.shard_dir(STRANGER)).unlink()
    assert table.count_rows() == 8


# ------------------------------------------------------------------------------------------------------- in `_versions`

KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "directory": os.mkdir,
    "link": lambda path: path.symlink_to("/etc/hostname"),
}
LOOK = """
import sys, lance_memwal as mw
try:
    mw.open_table(sys.argv[1])
except mw.CorruptDataError as error:
    sys.exit(error.path != sys.argv[2])
sys.exit("the pipe was not noticed")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_among_the_versions_is_damage_and_holds_nobody_up(place: Path, kind: str) -> None:
    table = mw.open_table(str(place))
    assert table.count_rows() == 3
    KINDS[kind](place / NEWER)
    if kind == "pipe":  # in a process of its own first, since nothing ends a thread that waits at one
        subprocess.run([sys.executable, "-c", LOOK, str(place), NEWER], check=True, timeout=60)
    for call in (table.count_rows, lambda: mw.open_table(str(place))):
        with pytest.raises(mw.CorruptDataError) as caught:
            call()
        assert caught.value.path == NEWER
    assert [problem.where for problem in table.verify().problems] == [NEWER]
    os.rmdir(place / NEWER) if kind == "directory" else os.unlink(place / NEWER)
    assert table.count_rows() == 3
    assert mw.open_table(str(place)).verify().ok


def test_a_pipe_in_the_place_of_an_older_version_stops_only_who_asks_for_it(place: Path) -> None:
    oldest = place / version_path(1)
    oldest.unlink()
    os.mkfifo(oldest)
    table = mw.open_table(str(place))
    assert table.count_rows() == 3
    with pytest.raises(mw.CorruptDataError, match=oldest.name):
        table.at(1).count_rows()
