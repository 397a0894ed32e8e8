"""The local store: durable names, whole objects after a kill, nothing outside the root, errors that say what to do."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_memwal.errors import (
    CorruptDataError,
    DirectoryNotFoundError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
)
from lance_memwal.store.files import STAGING_NAME, unavailable
from lance_memwal.store.local import LocalStore
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.retry import RetryingStore
from lance_memwal.testing.clocks import SkippingClock


class Disk:
    """Flushes for real, and remembers what was flushed and whether the object had its name by then."""

    def __init__(self, watched: Path) -> None:
        self.watched = watched
        self.sizes: list[int] = []
        self.flushed: list[tuple[str, bool]] = []
        self.broken: str | None = None

    def __call__(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self.broken is not None and path == self.broken:
            self.broken = None
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(fd)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            self.sizes.append(found.st_size)
        self.flushed.append((path, self.watched.exists()))

    def paths(self) -> list[str]:
        return [path for path, _ in self.flushed]


@pytest.mark.parametrize("use_tmpfile", [True, False])
def test_bytes_are_flushed_before_the_name_exists_and_every_name_after(tmp_path: Path, use_tmpfile: bool) -> None:
    root = tmp_path / "table"
    disk = Disk(root / "shard/wal/1")
    LocalStore(root, flush=disk, use_tmpfile=use_tmpfile).put_new("shard/wal/1", b"12345", sync=True)
    assert set(disk.sizes) == {5}
    contents, names = disk.flushed[:-4], disk.flushed[-4:]
    assert contents
    assert not any(named for _, named in contents)
    assert [path for path, _ in names] == [str(p) for p in (root / "shard/wal", root / "shard", root, tmp_path)]
    assert all(named for _, named in names)


def test_a_replaced_object_is_flushed_before_it_takes_the_name(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "hint")
    LocalStore(tmp_path, flush=disk).put("hint", b"12345", sync=True)
    assert disk.sizes == [5]
    assert [named for _, named in disk.flushed] == [False, True, True]
    assert disk.paths()[1:] == [str(tmp_path), str(tmp_path.parent)]


def test_without_sync_nothing_is_flushed(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "wal/1")
    store = LocalStore(tmp_path, flush=disk)
    store.put_new("wal/1", b"1")
    store.put("wal/hint", b"1")
    assert disk.flushed == []


@pytest.mark.parametrize("created_again", [False, True])
def test_a_second_put_flushes_only_directories_that_are_new(tmp_path: Path, created_again: bool) -> None:
    disk = Disk(tmp_path / "shard/wal/2")
    clock = SkippingClock()
    store = LocalStore(tmp_path, flush=disk, clock=clock)
    store.put_new("shard/wal/1", b"1")
    clock.sleep(10)
    store.put_new("shard/wal/1b", b"1", sync=True)
    if created_again:  # by another process
        LocalStore(tmp_path).delete("shard/wal/1")
        LocalStore(tmp_path).delete("shard/wal/1b")
        assert not (tmp_path / "shard").exists()
        LocalStore(tmp_path).put_new("shard/wal/other", b"x")
    disk.flushed.clear()
    store.put_new("shard/wal/2", b"2", sync=True)
    if created_again:
        assert {str(tmp_path / "shard/wal"), str(tmp_path / "shard"), str(tmp_path)} <= set(disk.paths())
    else:
        assert disk.paths()[1:] == [str(tmp_path / "shard/wal")]


def test_a_name_that_could_not_be_flushed_is_ambiguous_and_then_recognised(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "wal/1")
    disk.broken = str(tmp_path / "wal")
    with pytest.raises(UnavailableError, match="I/O error") as failed:
        LocalStore(tmp_path, flush=disk).put_new("wal/1", b"1", sync=True)
    assert failed.value.ambiguous
    disk = Disk(tmp_path / "wal/2")
    disk.broken = str(tmp_path / "wal")
    store = RetryingStore(LocalStore(tmp_path, flush=disk), clock=SkippingClock())
    assert store.put_new("wal/2", b"2", sync=True) is PutResult.RECOGNISED
    assert disk.paths()[-4:-1] == [str(tmp_path / "wal/2"), str(tmp_path / "wal"), str(tmp_path)]


@pytest.mark.parametrize("use_tmpfile", [True, False])
def test_bytes_that_could_not_be_flushed_never_get_a_name(tmp_path: Path, use_tmpfile: bool) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = LocalStore(tmp_path, flush=broken, use_tmpfile=use_tmpfile)
    with pytest.raises(UnavailableError):
        store.put_new("wal/1", b"1", sync=True)
    with pytest.raises(UnavailableError):
        store.put("wal/hint", b"1", sync=True)
    assert files_below(tmp_path) == []


def test_sync_tree_flushes_leaves_first_and_then_the_way_up(tmp_path: Path) -> None:
    root = tmp_path / "table"
    disk = Disk(root)
    store = LocalStore(root, flush=disk)
    store.put_new("shard/gen/data/a", b"1")
    store.put_new("shard/gen/b", b"2")
    store.sync_tree("shard/gen")
    order = {path.removeprefix(str(tmp_path)): place for place, path in enumerate(disk.paths())}
    gen = "/table/shard/gen"
    assert set(order) == {f"{gen}/data/a", f"{gen}/data", f"{gen}/b", gen, "/table/shard", "/table", ""}
    assert order[f"{gen}/data/a"] < order[f"{gen}/data"] < order[gen] < order["/table/shard"] < order["/table"]
    assert order[f"{gen}/b"] < order[gen]


def test_sync_tree_leaves_out_what_goes_meanwhile(tmp_path: Path) -> None:
    names = [f"table/_transactions/{number}" for number in range(5)]

    def flush(fd: int) -> None:
        """Whatever is made durable first: the others go before their turn comes."""
        for path in tmp_path.glob("table/_transactions/*"):
            if not os.path.samestat(path.stat(), os.fstat(fd)):
                path.unlink()

    store = LocalStore(tmp_path, flush=flush)
    for name in names:
        store.put_new(name, b"1")
    store.sync_tree("table")
    assert files_below(tmp_path) == []


def test_sync_tree_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        LocalStore(tmp_path).sync_tree("absent")


@pytest.mark.parametrize("use_tmpfile", [True, False])
def test_a_put_leaves_nothing_but_its_object(tmp_path: Path, use_tmpfile: bool) -> None:
    store = LocalStore(tmp_path, use_tmpfile=use_tmpfile)
    store.put_new("wal/1", b"1")
    store.put("wal/hint", b"1")
    with pytest.raises(ObjectExistsError):
        store.put_new("wal/1", b"2")
    assert files_below(tmp_path) == ["wal/1", "wal/hint"]


def test_staging_is_in_no_listing_and_cannot_be_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, use_tmpfile=False)
    store.put_new("wal/1", b"1")
    (tmp_path / STAGING_NAME / "left-over").write_bytes(b"half an ent")
    assert store.list_names("") == ["wal"]
    assert [meta.path for meta in store.list("")] == ["wal/1"]
    with pytest.raises(ValueError, match="not a path"):
        store.get(f"{STAGING_NAME}/left-over")


def test_what_killed_processes_left_in_staging_is_cleared_after_a_day(tmp_path: Path) -> None:
    staging = tmp_path / STAGING_NAME
    staging.mkdir()
    for name, age_hours in (("old", 25), ("young", 23)):
        (staging / name).write_bytes(b"half")
        then = time.time() - age_hours * 3600
        os.utime(staging / name, (then, then))
    LocalStore(tmp_path).put("hint", b"1")
    assert os.listdir(staging) == ["young"]


@pytest.mark.parametrize("lacks", ["anonymous files", "/proc"])
def test_the_way_without_them_is_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    asked = []
    real_open, real_link = os.open, os.link

    def old_kernel(path: str, flags: int, *args: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            asked.append(path)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real_open(path, flags, *args)

    def no_proc(source: str, target: str, **options: int) -> None:
        if source.startswith("/proc/"):
            asked.append(source)
            raise OSError(errno.ENOENT, "No such file or directory")
        real_link(source, target, **options)

    monkeypatch.setattr(os, *(("link", no_proc) if lacks == "/proc" else ("open", old_kernel)))
    store = LocalStore(tmp_path)
    os.mkdir(tmp_path / "wal")
    assert [store.put_new(f"wal/{number}", b"1") for number in range(3)] == [PutResult.CREATED] * 3
    assert len(asked) == 1
    with pytest.raises(ObjectExistsError):
        store.put_new("wal/1", b"2")


def reaches_nothing_outside(store: ObjectStore, path: str, outside: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put_new(path, b"x"),
        lambda: store.put(path, b"x"),
        lambda: store.get(path),
        lambda: store.head(path),
        lambda: store.delete(path),
        lambda: store.sync_tree(path),
    ]
    for call in calls:
        with pytest.raises(CorruptDataError, match="symbolic link"):
            call()
    assert os.listdir(outside) == ["secret"]


def test_a_symbolic_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "table"
    (root / "shard").mkdir(parents=True)
    (root / "shard/wal").symlink_to(outside)
    store = LocalStore(root)
    reaches_nothing_outside(store, "shard/wal/secret", outside)
    reaches_nothing_outside(store, "shard/wal/deeper/new", outside)
    for listing in (store.list, store.list_names):
        with pytest.raises(CorruptDataError):
            listing("shard/wal")
    assert store.list_names("shard") == ["wal"]
    assert [meta.path for meta in store.list("")] == ["shard/wal"]


def test_a_symbolic_link_to_a_file_is_listed_and_cannot_be_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    root = tmp_path / "table"
    (root / "wal").mkdir(parents=True)
    (root / "wal/1").symlink_to(secret)
    store = LocalStore(root)
    for read in (store.get, store.head, lambda path: store.get_tail(path, 4)):
        with pytest.raises(CorruptDataError, match="not a regular file"):
            read("wal/1")
    assert store.list_names("wal") == ["1"]
    assert [meta.path for meta in store.list("")] == ["wal/1"]
    with pytest.raises(ObjectExistsError):
        store.put_new("wal/1", b"x")
    store.delete("wal/1")
    assert secret.read_bytes() == b"secret"


def test_staging_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "table"
    root.mkdir()
    (root / STAGING_NAME).symlink_to(outside)
    with pytest.raises(CorruptDataError):
        LocalStore(root).put("hint", b"x")
    assert os.listdir(outside) == []


def test_a_root_behind_a_symbolic_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStore(tmp_path / "link").put_new("wal/1", b"1", sync=True)
    assert (tmp_path / "real/wal/1").read_bytes() == b"1"


def test_a_pipe_in_place_of_an_object_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "entry")
    with pytest.raises(CorruptDataError):
        LocalStore(tmp_path).get("entry")
    assert LocalStore(tmp_path).list_names("") == ["entry"]


def test_a_file_where_a_directory_must_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "wal").write_bytes(b"")
    for path in ("wal/1", "wal/deeper/1"):
        with pytest.raises(UnavailableError, match="a file lies where a directory must be") as refused:
            LocalStore(tmp_path).put_new(path, b"1")
        assert not refused.value.retryable


@pytest.mark.parametrize(
    ("number", "says", "retryable"),
    [
        (errno.EACCES, "permission denied", False),
        (errno.EROFS, "read-only", False),
        (errno.EPERM, "not permitted", False),
        (errno.ENOSPC, "free space", True),
        (errno.EIO, "check the disk", True),
        (errno.ESTALE, os.strerror(errno.ESTALE), True),
    ],
)
def test_errors_say_what_to_do(number: int, says: str, retryable: bool) -> None:
    error = unavailable("create", "wal/1", OSError(number, os.strerror(number)))
    assert "wal/1" in str(error)
    assert says in str(error)
    assert errno.errorcode[number] in str(error)
    assert error.retryable is retryable


_SMALL_DISK = """
import resource, signal, sys
from lance_memwal.errors import UnavailableError
from lance_memwal.store.local import LocalStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
store = LocalStore(sys.argv[1], use_tmpfile=sys.argv[2] == "True")
for put in (store.put_new, store.put):
    try:
        put("wal/1", b"x" * 4000)
    except UnavailableError as error:
        print(error)
"""


@pytest.mark.parametrize("use_tmpfile", [True, False])
def test_a_write_that_is_cut_short_leaves_nothing(tmp_path: Path, use_tmpfile: bool) -> None:
    command = [sys.executable, "-c", _SMALL_DISK, str(tmp_path), str(use_tmpfile)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("EFBIG") == 2
    assert files_below(tmp_path) == []


def test_a_forked_child_stores_its_own_bytes(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from lance_memwal.store.local import LocalStore\n"
        "store = LocalStore(sys.argv[1])\n"
        "store.put_new('wal/parent', b'parent')\n"
        "child = os.fork()\n"
        "name = 'b-parent' if child else 'b-child'\n"
        "for number in range(200):\n"
        "    store.put_new(f'wal/{name}-{number}', name.encode())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    store = LocalStore(tmp_path)
    names = [name for name in store.list_names("wal") if name.startswith("b-")]
    assert len(names) == 400
    assert all(store.get(f"wal/{name}") == name.rpartition("-")[0].encode() for name in names)


def files_below(root: Path) -> list[str]:
    """Every file below `root`, staging included."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_a_directory_is_made_inside_of_one_that_is_there_only(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "t"))
    with pytest.raises(DirectoryNotFoundError):
        store.make_directory("a/b")
    assert list(tmp_path.iterdir()) == []
    store.put_new("a/first", b"")
    for _ in range(2):
        store.make_directory("a/b")
    assert sorted(store.list_names("a")) == ["b", "first"]
    with pytest.raises(UnavailableError):
        store.make_directory("a/first")


# For each line of input a new writer process, so that only one process has to import the package.
_WRITERS = """
import os, sys
from lance_memwal.store.local import LocalStore
store = LocalStore(sys.argv[1], use_tmpfile=sys.argv[2] == "True")
def say(word):
    os.write(1, f"{word}\\n".encode())  # in one piece, also when the writer is killed
for line in sys.stdin:
    writer = os.fork()
    if writer:
        os.waitpid(writer, 0)
        say("dead")
        continue
    say(os.getpid())
    number = int(line)
    while True:
        store.put_new(f"shard/wal/{number}", bytes([number % 256]) * (300_000 + number % 7))
        store.put("shard/hint", bytes([number % 256]) * 100_000)
        say(number)
        number += 1
"""
_KILLS = 25


@pytest.mark.parametrize("use_tmpfile", [True, False])
def test_a_killed_writer_leaves_no_partial_object(tmp_path: Path, use_tmpfile: bool) -> None:
    draw = random.Random(5)
    acknowledged: set[int] = set()
    command = [sys.executable, "-c", _WRITERS, str(tmp_path), str(use_tmpfile)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for kill in range(_KILLS):
            print(kill * 10_000, file=writers.stdin, flush=True)
            writer = int(writers.stdout.readline())
            acknowledged.add(int(writers.stdout.readline()))
            time.sleep(draw.random() * 0.01)  # the moment of death is the thing under test
            os.kill(writer, signal.SIGKILL)
            while (line := writers.stdout.readline().strip()) != "dead":
                acknowledged.add(int(line))
        writers.stdin.close()
    store = LocalStore(tmp_path)
    found = {int(name) for name in store.list_names("shard/wal")}
    assert acknowledged <= found
    assert len(found) - len(acknowledged) <= _KILLS
    for number in found:
        assert store.get(f"shard/wal/{number}") == bytes([number % 256]) * (300_000 + number % 7)
    hint = store.get("shard/hint")
    assert hint == hint[:1] * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == [STAGING_NAME, "shard"]
    assert len(list((tmp_path / STAGING_NAME).iterdir())) <= _KILLS
