"""What a disk may hold after power fails: the records of `recorder.c`, played up to an instant, less what was not synced.

Owns `Record`, `read_trace` and `Disk`. The rules are those of POSIX, which promise less than any file system keeps:

1. The bytes of a file are on the disk after an fsync of the file. Of later writes, each may be there, or not, or torn: cut
   short, or as long as it was and without its bytes, all of them or some in the middle. What was there before shows then, and
   zeros where nothing was.
2. A name is on the disk (or gone from it) after an fsync of its directory. Of later changes of names, each may be there
   or not, whatever became of the others; renaming inside one directory is one change, otherwise two.
3. An fsync of a file says nothing of its name.
"""

import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

_HEAD = struct.Struct("<IIQQII")


class Kind(IntEnum):
    MADE = 1
    NAMED = 2
    RENAMED = 3
    REMOVED = 4
    WROTE = 5
    CUT = 6
    SYNCED = 7
    MARK = 8


@dataclass(frozen=True, slots=True)
class Record:
    """One effect. `path` and `other` are names, `data` what was written or, for a mark, what the process said."""

    kind: Kind
    file: int = 0
    offset: int = 0
    is_directory: bool = False
    path: str = ""
    data: bytes = b""

    @property
    def said(self) -> list[Any]:
        """What a mark says."""
        value: list[Any] = json.loads(self.data)
        return value


def mark(*said: Any) -> bytes:
    """The bytes of a record with which the process under test tells what it began and what returned."""
    data = json.dumps(said).encode()
    return _HEAD.pack(Kind.MARK, 0, 0, 0, 0, len(data)) + data


def read_trace(path: Path) -> Iterator[Record]:
    """The records in the order of their effects."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        kind, is_directory, file, offset, first, second = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        name = data[at : at + first].decode()
        yield Record(Kind(kind), file, offset, bool(is_directory), name, data[at + first : at + first + second])
        at += first + second


# ------------------------------------------------------------------------------------------------------- what may be kept

Fate = Callable[[Record, random.Random], bool]
"""Whether a change that was not synced is on the disk all the same."""

FATES: dict[str, Fate] = {
    "nothing more": lambda _record, _draw: False,
    "everything": lambda _record, _draw: True,
    "names without bytes": lambda record, _draw: record.kind not in (Kind.WROTE, Kind.CUT),
    "removals alone": lambda record, _draw: record.kind == Kind.REMOVED,
    "all but removals": lambda record, _draw: record.kind != Kind.REMOVED,
    "zeros": lambda _record, _draw: True,
    "a hole": lambda _record, _draw: True,
    "some": lambda _record, draw: draw.random() < 0.5,
    "most": lambda _record, draw: draw.random() < 0.9,
}
REORDERED = ("a hole", "some", "most")  # those that draw: another seed is another state of the disk


Tear = Callable[[bytes, random.Random], tuple[int, list[slice]]]
"""How many bytes of a write the file got room for, and which of them are on the disk."""


def _whole(data: bytes, _draw: random.Random) -> tuple[int, list[slice]]:
    return len(data), [slice(0, len(data))]


def _cut_short(data: bytes, draw: random.Random) -> tuple[int, list[slice]]:
    kept = draw.randrange(len(data) + 1)
    return kept, [slice(0, kept)]


def _zeros(data: bytes, _draw: random.Random) -> tuple[int, list[slice]]:
    return len(data), []


def _hole(data: bytes, draw: random.Random) -> tuple[int, list[slice]]:
    first, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return len(data), [slice(0, first), slice(end, len(data))]


def _any(data: bytes, draw: random.Random) -> tuple[int, list[slice]]:
    tear = draw.choice((_cut_short, _zeros, _hole)) if draw.random() < 0.2 else _whole
    return tear(data, draw)


_TEARS: dict[str, Tear] = {"zeros": _zeros, "a hole": _hole, "some": _any, "most": _any}


@dataclass(slots=True)
class _File:
    """A file: the bytes that are on the disk, and what was done since."""

    synced: bytes = b""
    since: list[Record] = field(default_factory=list)

    def do(self, record: Record) -> None:
        self.since.append(record)

    def sync(self) -> None:
        self.synced = self.kept(lambda _record: True, lambda data: (len(data), [slice(0, len(data))]))
        self.since.clear()

    def kept(self, kept: Callable[[Record], bool], tear: Callable[[bytes], tuple[int, list[slice]]]) -> bytes:
        content = bytearray(self.synced)
        for record in self.since:
            if not kept(record):
                continue
            if record.kind == Kind.CUT:
                del content[record.offset :]
                content.extend(bytes(record.offset - len(content)))
                continue
            length, parts = tear(record.data)
            content.extend(bytes(max(0, record.offset + length - len(content))))
            for part in parts:
                content[record.offset + part.start : record.offset + part.stop] = record.data[part]
        return bytes(content)


Names = dict[str, "_File | _Directory"]
_Change = tuple[Record, Callable[[Names], None]]


@dataclass(slots=True)
class _Directory:
    """A directory: the names that are on the disk, and how they changed since."""

    synced: Names = field(default_factory=dict)
    since: list[_Change] = field(default_factory=list)
    now: Names = field(default_factory=dict)

    def do(self, record: Record, change: Callable[[Names], None]) -> None:
        change(self.now)
        self.since.append((record, change))

    def sync(self) -> None:
        self.synced = dict(self.now)
        self.since.clear()

    def kept(self, kept: Callable[[Record], bool]) -> Names:
        names = dict(self.synced)
        for record, change in self.since:
            if kept(record):
                change(names)
        return names


class Disk:
    """The files below one root, as the records made them."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._top = _Directory()
        self._inodes: dict[int, _File | _Directory] = {}

    def play(self, record: Record) -> None:
        """Take one effect in."""
        match record.kind:
            case Kind.MADE:
                self._inodes[record.file] = _Directory() if record.is_directory else _File()
            case Kind.NAMED:
                made = self._inodes[record.file]
                directory, name = self._parent(record.path)
                directory.do(record, lambda names: names.update({name: made}))
            case Kind.RENAMED:
                self._rename(record)
            case Kind.REMOVED:
                directory, name = self._parent(record.path)
                directory.do(record, lambda names: names.pop(name, None))
            case Kind.WROTE | Kind.CUT:
                file = self._inodes[record.file]
                assert isinstance(file, _File)
                file.do(record)
            case Kind.SYNCED:
                self._inodes.get(record.file, self._top).sync()  # the root is the one that nobody made
            case Kind.MARK:
                pass

    def write(self, place: Path, fate: str, draw: random.Random) -> None:
        """Make at `place` what the disk may hold if power failed now; `fate` is one of `FATES`."""

        def keep(record: Record) -> bool:
            return FATES[fate](record, draw)

        def tear(data: bytes) -> tuple[int, list[slice]]:
            return _TEARS.get(fate, _whole)(data, draw)

        pending: list[tuple[Path, _Directory]] = [(place, self._top)]
        written: dict[int, Path] = {}
        while pending:
            where, directory = pending.pop()
            where.mkdir()
            for name, item in directory.kept(keep).items():
                if isinstance(item, _Directory):
                    pending.append((where / name, item))
                elif id(item) in written:
                    (where / name).hardlink_to(written[id(item)])
                else:
                    written[id(item)] = where / name
                    (where / name).write_bytes(item.kept(keep, tear))

    def _rename(self, record: Record) -> None:
        source, old = self._parent(record.path)
        target, new = self._parent(record.data.decode())
        moved = source.now[old]
        if source is target:
            source.do(record, lambda names: (names.pop(old, None), names.update({new: moved}))[0])
            return
        source.do(record, lambda names: names.pop(old, None))
        target.do(record, lambda names: names.update({new: moved}))

    def _parent(self, path: str) -> tuple[_Directory, str]:
        """The directory that holds `path`, and the name in it."""
        parts = Path(path).relative_to(self._root).parts
        directory = self._top
        for part in parts[:-1]:
            below = directory.now[part]
            assert isinstance(below, _Directory)
            directory = below
        return directory, parts[-1]
