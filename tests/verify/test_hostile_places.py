"""Links, pipes and directories where others belong: verify reports them, and nobody follows, waits or blames the caller."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.manifest import version_path
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve

SHARD = mw.shard_id_for(mw.Unsharded())
STRANGER = "11111111-1111-4111-8111-111111111111"
NEWER = version_path(615)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row in the base table, one in a generation, one in the log, and a checkpoint."""
    place = tmp_path_factory.mktemp("whole") / "t"
    table = mw.create_table(str(place), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    writer = table.writer(compaction=None)
    for number in range(2):
        writer.put([{"id": number, "v": 1}])
        writer.flush()
        if number == 0:
            table.compact()
    writer.put([{"id": 2, "v": 1}])
    table.checkpoint_create("cp")
    writer.abort()
    assert table.verify().ok
    return place


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return Path(shutil.copytree(whole, tmp_path / "t"))


def linked(path: str) -> Callable[[Path], str]:
    """Put a link to elsewhere in the place of what lies at `path`."""

    def plant(place: Path) -> str:
        shutil.rmtree(place / path, ignore_errors=True)
        (place / path).symlink_to(place.parent / "elsewhere")
        return path

    return plant


def linked_entry(place: Path) -> str:
    path = paths.wal_entry_path(SHARD, list_positions(resolve(str(place)), SHARD)[-1])
    shutil.move(place / path, place.parent / "entry")
    (place / path).symlink_to(place.parent / "entry")
    return path


PLACES: dict[str, Callable[[Path], str]] = {
    "a strange shard": linked(paths.shard_dir(STRANGER)),
    "the shard": linked(paths.shard_dir(SHARD)),
    "the log": linked(paths.wal_dir(SHARD)),
    "the manifests": linked(paths.manifest_dir(SHARD)),
    "the roll-ups": linked(paths.roll_up_dir(SHARD)),
    "the floor": linked(paths.floor_dir(SHARD)),
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
    table = mw.create_table(
        uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False}
    )
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
