"""The store on a local or mounted filesystem, with real fsync.

Owns the mapping from store paths to files below one root. Invariants, besides S1 to S7 of the port:

1. An object gets its name by `link`, after all its bytes are in the file (and fsynced, with `sync`), so a process
   killed at any instant leaves no partial object and, where the kernel has O_TMPFILE, no stray file at all.
2. Where it has not, and for `put`, the staging file lies in one directory of the root that no listing shows.
3. Nothing below the root is reached through a symbolic link: such a path is refused, on reads as on writes. A
   directory is checked when it is first met; whoever can swap it later can already write to the table. Listings show
   links, and whatever else is no file: a name that they hid would be taken as absent, and the one before it as newest.
4. With `sync`, every name on the way from the root's parent down to the object is durable, whoever created the
   directories.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import (
    CorruptDataError,
    DirectoryNotFoundError,
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
)
from lance_memwal.store.files import (
    FILE_MODE,
    STAGING_NAME,
    Flush,
    Staging,
    Syncer,
    flush_to_disk,
    read_span,
    unavailable,
    write_all,
)
from lance_memwal.store.port import ObjectMeta, PutResult

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a planted symbolic link or pipe must not lead or hold us
_ANONYMOUS = getattr(os, "O_TMPFILE", 0) | os.O_WRONLY
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
_NO_PROC_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_BAD_NAMES = frozenset({"", ".", "..", STAGING_NAME})
_ATTEMPTS = 8  # a directory may vanish as often as a collector empties it, but nobody does that eight times in a row
_CACHED_DIRECTORIES = 4096


class LocalStore:
    """Objects as files below `root`.

    `flush` makes a descriptor durable; None ignores `sync`, for roots that end with the process.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        flush: Flush | None = flush_to_disk,
        use_tmpfile: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.root = os.path.realpath(root)
        self._base = self.root.rstrip("/")
        self._flush = flush
        self._use_tmpfile = use_tmpfile and hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
        self._staging = Staging(self._base, clock)
        self._syncer = Syncer(self.root, clock)
        self._directories: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """Create `path` with `data`, whole, or raise `ObjectExistsError`."""
        directory, name = self._locate(path)
        flush = self._flush if sync else None
        for _ in range(_ATTEMPTS):
            try:
                if self._use_tmpfile:
                    self._link_anonymous(directory, name, data, flush)
                else:
                    self._link_staged(directory, name, data, flush)
            except FileExistsError:
                raise ObjectExistsError(path) from None
            except FileNotFoundError:
                if not make_directory:
                    raise DirectoryNotFoundError(path.rpartition("/")[0]) from None
                self._make_parent(path)
                continue
            except OSError as error:
                raise unavailable("create", path, error) from error
            if flush is not None:
                self._sync_names(directory, path, flush)
            return PutResult.CREATED
        raise UnavailableError(f"cannot create {path}: its directory keeps disappearing: try again")

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replace `path` atomically."""
        directory, name = self._locate(path)
        flush = self._flush if sync else None
        for _ in range(_ATTEMPTS):
            try:
                self._replace_staged(directory, name, data, flush)
            except FileNotFoundError:
                self._make_parent(path)
                continue
            except OSError as error:
                raise unavailable("replace", path, error) from error
            if flush is not None:
                self._sync_names(directory, path, flush)
            return
        raise UnavailableError(f"cannot replace {path}: its directory keeps disappearing: try again")

    def get(self, path: str) -> bytes:
        """All bytes of `path`."""
        return self._read(path, 0, None)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` on; shorter where the object ends."""
        if start < 0 or length < 0:
            raise InvalidInputError(f"a range cannot be negative: start {start}, length {length}")
        return self._read(path, start, length)

    def get_tail(self, path: str, length: int) -> bytes:
        """The last `length` bytes, or the whole object if it is shorter."""
        if length < 0:
            raise InvalidInputError(f"a length cannot be negative: {length}")
        return self._read(path, -length, length)

    def head(self, path: str) -> ObjectMeta:
        """Size and time of `path`."""
        directory, name = self._locate(path)
        try:
            found = os.lstat(f"{directory}/{name}")
        except OSError as error:
            raise self._read_error(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise self._not_an_object(path)
        return _meta(path, found)

    def list_names(self, prefix: str) -> list[str]:
        """The names directly below the directory `prefix`, objects and directories alike, in no order."""
        return [entry.name for entry in self._entries(prefix.rstrip("/"))]

    def list(self, prefix: str) -> list[ObjectMeta]:
        """Every object below the directory `prefix` (recursive), in no order."""
        found = []
        pending = [prefix.rstrip("/")]
        while pending:
            below = pending.pop()
            for entry in self._entries(below):
                path = f"{below}/{entry.name}" if below else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                    continue
                try:
                    seen = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted since the directory was read
                found.append(_meta(path, seen))
        return found

    def delete(self, path: str) -> None:
        """Remove `path`, and the directories that this leaves empty; absent is fine. A directory goes if it is empty, and so
        does the root, which is ""."""
        if not path:
            _remove_empty(self.root)
            return
        directory, name = self._locate(path)
        try:
            os.unlink(f"{directory}/{name}")
        except OSError as error:
            if os.path.isdir(f"{directory}/{name}") and not os.path.islink(f"{directory}/{name}"):
                _remove_empty(f"{directory}/{name}")
            elif error.errno not in _ABSENT:
                raise unavailable("delete", path, error) from error
            return
        while len(directory) > len(self.root):
            try:
                os.rmdir(directory)
            except OSError:
                return  # it has other names in it; and an empty directory that stays is not an object
            directory = os.path.dirname(directory)

    def sync_tree(self, prefix: str) -> None:
        """Make every file and directory below `prefix`, and the name `prefix` itself, survive power loss."""
        if self._flush is None:
            return
        directory, name = self._locate(prefix)
        try:
            self._syncer.below(f"{directory}/{name}", self._flush)
        except FileNotFoundError:
            raise ObjectNotFoundError(prefix) from None
        except OSError as error:
            raise unavailable("sync", prefix, error) from error
        self._sync_names(directory, prefix, self._flush)

    def _locate(self, path: str) -> tuple[str, str]:
        """The checked directory and the name of `path`."""
        relative, slash, name = path.rpartition("/")
        directory = self._directories.get(relative)
        if directory is None:
            directory = self._check_directory(relative)
        if name in _BAD_NAMES or "\0" in name or (slash and not relative):
            raise InvalidInputError(f"not a path of an object: {path!r}")
        return directory, name

    def _check_directory(self, relative: str) -> str:
        """The directory `relative`, after proof that no part of it is a symbolic link or leads upwards."""
        if relative and any(part in _BAD_NAMES or "\0" in part for part in relative.split("/")):
            raise InvalidInputError(f"not a path of an object: {relative!r}")
        directory = f"{self._base}/{relative}" if relative else self.root
        if os.path.realpath(directory) != directory:
            raise CorruptDataError("a symbolic link lies inside the table: replace it with a directory", path=relative)
        if os.path.isdir(directory):
            if len(self._directories) >= _CACHED_DIRECTORIES:
                self._directories.clear()
            self._directories[relative] = directory
        return directory

    def make_directory(self, path: str) -> None:
        """Let the directory `path` exist inside of one that does; else `DirectoryNotFoundError`."""
        try:
            self._make(path, os.mkdir)
        except FileNotFoundError:
            raise DirectoryNotFoundError(path.rpartition("/")[0]) from None

    def _make_parent(self, path: str) -> None:
        with suppress(FileNotFoundError):  # removed meanwhile; the caller tries again
            self._make(path.rpartition("/")[0], os.makedirs)

    def _make(self, path: str, make: Callable[[str], None]) -> None:
        self._directories.pop(path, None)
        directory = self._check_directory(path)
        try:
            make(directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            if not os.path.isdir(directory):
                raise unavailable("create the directory", path, error, ambiguous=False) from error
        self._check_directory(path)

    def _sync_names(self, directory: str, path: str, flush: Flush) -> None:
        try:
            self._syncer.names(directory, flush)
        except OSError as error:
            raise unavailable("sync the name of", path, error) from error

    def _link_anonymous(self, directory: str, name: str, data: bytes, flush: Flush | None) -> None:
        """Fill a file that has no name yet, then give it its name; falls back for good where the kernel cannot."""
        try:
            fd = os.open(directory, _ANONYMOUS, FILE_MODE)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
            self._use_tmpfile = False
            self._link_staged(directory, name, data, flush)
            return
        try:
            write_all(fd, data)
            if flush is not None:
                flush(fd)
            # Given a directory descriptor, Python calls linkat, which can follow the link (absolute paths ignore it).
            # The path through "self" is right in a forked child too, where a kept descriptor of /proc would not be.
            os.link(f"/proc/self/fd/{fd}", f"{directory}/{name}", src_dir_fd=fd, follow_symlinks=True)
            return  # noqa: TRY300 - the rest is the way without /proc
        except OSError as error:
            if error.errno not in _NO_PROC_LINK or (error.errno == errno.ENOENT and not os.path.isdir(directory)):
                raise
        finally:
            os.close(fd)
        self._link_staged(directory, name, data, flush)
        self._use_tmpfile = False

    def _link_staged(self, directory: str, name: str, data: bytes, flush: Flush | None) -> None:
        if not os.path.isdir(directory):  # asked first, since staging would bring the root of a removed table back
            raise FileNotFoundError(errno.ENOENT, "the directory is gone", directory)
        staged = self._staging.write(data, flush)
        try:
            os.link(staged, f"{directory}/{name}")
        finally:
            os.unlink(staged)

    def _replace_staged(self, directory: str, name: str, data: bytes, flush: Flush | None) -> None:
        staged = self._staging.write(data, flush)
        try:
            os.replace(staged, f"{directory}/{name}")
        except OSError:
            os.unlink(staged)
            raise

    def _read(self, path: str, start: int, length: int | None) -> bytes:
        directory, name = self._locate(path)
        try:
            fd = os.open(f"{directory}/{name}", _READ)
            try:
                data = read_span(fd, start, length)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._read_error(path, error) from error
        if data is None:
            raise self._not_an_object(path)
        return data

    def _entries(self, prefix: str) -> Sequence[os.DirEntry[str]]:
        """What is in `prefix`; nothing if it is absent."""
        directory = self._directories.get(prefix) or self._check_directory(prefix)
        try:
            with os.scandir(directory) as entries:
                return [entry for entry in entries if entry.name != STAGING_NAME]
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise unavailable("list", prefix, error, ambiguous=False) from error

    def _read_error(self, path: str, error: OSError) -> MemWalError:
        if error.errno in _ABSENT:
            return ObjectNotFoundError(path)
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return self._not_an_object(path)
        return unavailable("read", path, error, ambiguous=False)

    def _not_an_object(self, path: str) -> MemWalError:
        """A directory is not an object, so nothing is there; anything else was put there by somebody else."""
        directory, name = self._locate(path)
        if stat.S_ISDIR(os.lstat(f"{directory}/{name}").st_mode):
            return ObjectNotFoundError(path)
        return CorruptDataError("not a regular file: replace it with one", path=path)


def _remove_empty(directory: str) -> None:
    """Remove the directories at and below `directory` that hold no file."""
    for place, _, _ in os.walk(directory, topdown=False):
        try:
            os.rmdir(place)
        except OSError:
            continue  # it has names in it, or its owner was faster


def _meta(path: str, found: os.stat_result) -> ObjectMeta:
    # Copies that keep the time of the original (cp -a, tar, rsync) have a time of change of their own.
    stamp = f"{found.st_mtime_ns}.{found.st_ctime_ns}"
    return ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000, stamp)
