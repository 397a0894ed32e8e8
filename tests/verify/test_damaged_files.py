"""Whatever file is cut, zeroed, changed or gone: verify and repair say so, and nobody calls it the fault of the caller."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.process.cache import CACHE
from lance_memwal.store import paths
from lance_memwal.store.location import resolve

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base table with deleted rows, a generation with replaced rows, and a tail."""
    place = tmp_path_factory.mktemp("whole") / "t"
    defaults = {"fsync": False}
    table = mw.create_table(str(place), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults=defaults)
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
DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
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
    changed = DAMAGE[damage](path.read_bytes())
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    CACHE.clear()
    return str(path.relative_to(place))


@pytest.mark.repro("reads-10")
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", FILES)
def test_damage_is_reported_and_never_called_the_callers_fault(
    whole: Path, tmp_path: Path, kind: str, damage: str
) -> None:
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
