"""What the local store asks of the operating system: whole writes, whole reads, staging, real fsync, clear errors.

Owns the calls on file descriptors. Invariants:

1. A short write or read is continued, never returned as success.
2. An `OSError` becomes an `UnavailableError` whose text says what to do about it.
3. A staged file is closed before it gets its name, so that a late write error comes first.
4. A file or directory counts as durable only while its modification time is that of its last fsync, and what was seen in a
   directory as true only while its modification time is that of the look.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import CorruptDataError, UnavailableError

Flush = Callable[[int], object]
STAGING_NAME = ".memwal-tmp"
FILE_MODE = 0o666  # as open() has it; the umask takes away what the user does not want
_STAGING_LIFE_MS = 24 * 3600 * 1000
_TIMESTAMP_TICK_MS = 50  # a modification time younger than this may not show a later change
_REMEMBERED = 65_536
_LOOKED_AT = 1024
_PERMANENT = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)
_IN_THE_WAY = "a file lies where a directory must be: move it away"
_ADVICE = {
    errno.EACCES: "permission denied: give this process the right to use it",
    errno.EPERM: "not permitted: check the owner, and that the filesystem has hard links",
    errno.EROFS: "the filesystem is read-only: mount it writable or choose another place",
    errno.ENOSPC: "no space left: free space on the filesystem",
    errno.EDQUOT: "the disk quota is used up: free space or raise the quota",
    errno.EIO: "the disk reports an I/O error: check the disk",
    errno.EMFILE: "too many open files: raise the limit of this process",
    errno.ENFILE: "too many open files: raise the limit of the system",
    errno.EOPNOTSUPP: "the filesystem has no hard links: choose another place",
    errno.EXDEV: "part of the table lies on another filesystem: keep a table on one",
    errno.ENAMETOOLONG: "the name is too long for the filesystem: choose a shorter place",
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
}


def unavailable(verb: str, path: str, error: OSError, *, ambiguous: bool = True) -> UnavailableError:
    """The error that tells the caller what to do about `error`."""
    number = error.errno or 0
    advice = _ADVICE.get(number) or f"{error.strerror or type(error).__name__}: try again"
    code = errno.errorcode.get(number, "unknown")
    return UnavailableError(
        f"cannot {verb} {path}: {advice} [errno={code}]", ambiguous=ambiguous, retryable=number not in _PERMANENT
    )


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of `data`, however many calls it takes."""
    written = os.write(fd, data)
    if written == len(data):
        return
    rest = memoryview(data)[written:]
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_span(fd: int, start: int, length: int | None) -> bytes | None:
    """`length` bytes from `start` on (negative: from the end; None: all), or None if `fd` is no regular file."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return None
    if start < 0:
        start = max(0, found.st_size + start)
    wanted = max(0, found.st_size - start)
    if length is not None and length < wanted:
        wanted = length
    data = os.pread(fd, wanted, start)
    while len(data) < wanted:
        more = os.pread(fd, wanted - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def odd_names(directory: str) -> frozenset[str]:
    """The names in a directory that are no regular files; none if it cannot be listed, of which others tell. One that did not
    change since the last call costs a look."""
    try:
        found = os.stat(directory)
        is_settled = SYSTEM_CLOCK.now_ms() - found.st_mtime_ns // 1_000_000 > _TIMESTAMP_TICK_MS
        look = _odd_names if is_settled else _odd_names.__wrapped__
        return look(directory, found.st_ino, found.st_mtime_ns)
    except OSError:
        return frozenset()


@lru_cache(maxsize=_LOOKED_AT)
def _odd_names(directory: str, _inode: int, _modified_ns: int) -> frozenset[str]:
    with os.scandir(directory) as entries:
        return frozenset(entry.name for entry in entries if not entry.is_file(follow_symlinks=False))


def _flusher() -> Flush:
    """`fsync`, or on macOS the call that also empties the drive's cache."""
    try:
        import fcntl
    except ImportError:
        return os.fsync
    full = getattr(fcntl, "F_FULLFSYNC", None)
    return os.fsync if full is None else lambda fd: fcntl.fcntl(fd, full)


flush_to_disk: Flush = _flusher()
"""Return after the bytes of a descriptor's file, or the names in its directory, are on the disk."""


def _sync_path(path: str, flush: Flush) -> None:
    """Flush the file at `path`, or the names in the directory at `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        flush(fd)
    finally:
        os.close(fd)


class Syncer:
    """Makes files, and names up to `root`'s own, durable, with no fsync that is known to be superfluous."""

    def __init__(self, root: str, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._durable: dict[str, tuple[int, int]] = {}

    def below(self, path: str, flush: Flush) -> None:
        """Return after the file at `path`, or every file and name below that directory, is on the disk; leaves first.

        What others remove below it meanwhile needs no sync.
        """
        if stat.S_ISDIR(os.lstat(path).st_mode):
            with os.scandir(path) as entries:
                for entry in entries:
                    if not entry.is_symlink():
                        with suppress(FileNotFoundError):
                            self.below(entry.path, flush)
        self._sync_if_changed(path, flush)

    def names(self, directory: str, flush: Flush) -> None:
        """Return after the names in `directory`, and all names that lead to it, are on the disk."""
        _sync_path(directory, flush)
        if directory == self._root:
            _sync_path(os.path.dirname(directory), flush)
        while len(directory) > len(self._root):
            directory = os.path.dirname(directory)
            self._sync_if_changed(directory, flush)

    def _sync_if_changed(self, path: str, flush: Flush) -> None:
        found = os.stat(path)
        state = (found.st_ino, found.st_mtime_ns)
        if self._durable.get(path) == state:
            return
        _sync_path(path, flush)
        if path == self._root:  # it may be a new one of the same name
            _sync_path(os.path.dirname(path), flush)
        if self._clock.now_ms() - found.st_mtime_ns // 1_000_000 > _TIMESTAMP_TICK_MS:
            if len(self._durable) >= _REMEMBERED:
                self._durable.clear()
            self._durable[path] = state


class Staging:
    """Files on the way to their names, in one directory of the root that no listing shows."""

    def __init__(self, base: str, clock: Clock) -> None:
        self._directory = f"{base}/{STAGING_NAME}"
        self._clock = clock
        self._opened = False

    def write(self, data: bytes, flush: Flush | None) -> str:
        """The path of a new, closed file that holds `data`, flushed if there is a way given to do it."""
        if not (self._opened and os.path.isdir(self._directory)):
            self._open()
        staged = f"{self._directory}/{os.getpid()}-{self._clock.token_hex(16)}"
        try:
            fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        except FileExistsError as error:  # not to be taken for an answer about the object
            raise OSError(errno.EAGAIN, "staging name is in use") from error
        try:
            try:
                write_all(fd, data)
                if flush is not None:
                    flush(fd)
            finally:
                os.close(fd)
        except BaseException:
            os.unlink(staged)
            raise
        return staged

    def _open(self) -> None:
        """Create the directory, and clear what killed processes left there long ago."""
        if os.path.realpath(self._directory) != self._directory:
            raise CorruptDataError("a symbolic link lies inside the table: remove it", path=STAGING_NAME)
        os.makedirs(self._directory, exist_ok=True)
        oldest_ms = self._clock.now_ms() - _STAGING_LIFE_MS
        with os.scandir(self._directory) as entries:
            for entry in entries:
                try:
                    if entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000 < oldest_ms:
                        os.unlink(entry.path)
                except FileNotFoundError:
                    continue  # its owner was faster
        self._opened = True
