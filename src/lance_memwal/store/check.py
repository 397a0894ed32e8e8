"""Check that a store keeps the guarantees of the port that protect rows, first of all that a create never overwrites.

Entry points: `check_creates` before a table is created or enabled, `read_checked` before the first commit of a process to a
table, `check_store` for the full analysis.

1. `check_creates` creates one object of the table twice. Any "exists" proves that the store, and every proxy on the way,
   honours the condition. A store that creates the object twice is refused, and the object is deleted.
2. A process checks once per location. The request runs while the manifest is read, so it costs no round trip. A table of
   another implementation has no such object: then the first process creates it, with one request more.
3. `check_store` writes below a directory of its own and deletes every object that it created, also after a failure.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order, side_by_side
from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.wrap import WrappedStore

_T = TypeVar("_T")
_TEXT = b"lance-memwal creates this object repeatedly: the store must refuse each create but the first.\n"
_ROUNDS = 8
_RACES = 16
_RACERS = 8
_LISTED = 1001  # services list 1,000 objects per page
_AT_ONCE = 16
_REPR_CHARACTERS = 70
_TIMED = {"put_new": "create", "get": "read", "list": "list", "delete": "delete"}


def check_creates(location: Location) -> None:
    """Create the check object twice; `InvalidInputError` if the store lets the second create overwrite the first."""
    for _ in range(2):
        try:
            created = location.store.put_new(paths.STORE_CHECK, _TEXT)
        except ObjectExistsError:
            break
        if created is PutResult.RECOGNISED:  # the store answered "exists" to a retry
            break
    else:
        location.store.delete(paths.STORE_CHECK)
        raise InvalidInputError(
            f"the store at {location.describe()} ignores the condition of a create (If-None-Match), so writers could "
            "overwrite each other's rows; nothing was written. Use an endpoint that honours it: "
            "memwal check-store reports whether it does"
        )
    location.is_checked.set()


def read_checked(location: Location, read: Callable[[], _T], clock: Clock) -> _T:
    """The result of `read`, the first read of a commit. The first time `check_creates` runs at the same time."""
    if location.is_checked.is_set():
        return read()
    check = partial(check_creates, location)
    result: _T = side_by_side([read, check], location.at_once(2) - 1, "memwal-check", clock)[0]
    return result


@dataclass(frozen=True, slots=True, repr=False)
class StoreReport:
    """What `check_store` found.

    `verdicts` has one text per property of the store: "ok", or what went wrong. `timings` has the median seconds of one
    request of each kind.
    """

    uri: str
    verdicts: Mapping[str, str]
    timings: Mapping[str, float]

    @property
    def problems(self) -> list[str]:
        """The properties that the store does not have, and what went wrong."""
        return [f"{name}: {verdict}" for name, verdict in self.verdicts.items() if verdict != "ok"]

    @property
    def ok(self) -> bool:
        """Whether tables are safe in this store."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The report as values that JSON can hold."""
        return {"ok": self.ok, **asdict(self)}

    def __repr__(self) -> str:
        uri = self.uri if len(self.uri) <= _REPR_CHARACTERS else f"…{self.uri[1 - _REPR_CHARACTERS :]}"
        return f"StoreReport({uri!r}, ok={self.ok})"

    def __str__(self) -> str:
        verdict = "is safe for tables" if self.ok else "is not safe for tables: rows could be lost"
        timings = ", ".join(f"{kind} {seconds * 1000:.3g} ms" for kind, seconds in self.timings.items())
        lines = [f"{name}: {text}" for name, text in self.verdicts.items()]
        return "\n".join([f"{self.uri} {verdict}", *lines, f"median times: {timings}"])


def check_store(
    uri: str | os.PathLike[str] | Location, *, storage_options: Mapping[str, str] | None = None
) -> StoreReport:
    """Check that tables are safe in the store at `uri`; takes about 2,300 small requests, and leaves nothing behind.

    Args:
        uri: The URI or path of a table, or of any directory below which you want to create tables.
        storage_options: The options of the object store, as for `open_table`.

    Raises:
        UnavailableError: The store cannot be reached, or refuses conditional requests.
    """
    location = resolve(uri, storage_options, metrics=Recorder())
    missing = _missing_directories(location.root_path)
    store = _Created(location.store)
    directory = paths.store_check_dir(SYSTEM_CLOCK.token_hex(8))
    try:
        verdicts = {name: check(store, f"{directory}/{check.__name__}") for name, check in _ONE_BY_ONE.items()}
        calls = location.metrics.snapshot()
        verdicts |= {name: check(store, f"{directory}/{check.__name__}") for name, check in _CONCURRENT.items()}
    finally:
        for _ in in_order(store.delete, sorted(store.created), _AT_ONCE, "memwal-check"):
            pass
        for created in missing:
            with suppress(OSError):  # another process may have put a file into it
                os.rmdir(created)
    timings = {name: calls[kind].latency.p50 or 0.0 for kind, name in _TIMED.items() if kind in calls}
    return StoreReport(location.describe(), {name: text or "ok" for name, text in verdicts.items()}, timings)


def _missing_directories(path: str | None) -> list[str]:
    """The directories that do not exist, of a local one and those that it is in; the innermost is first."""
    missing: list[str] = []
    while path is not None and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


class _Created(WrappedStore):
    """A store that remembers the objects that it may have created."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.created: set[str] = set()

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:
        """Carry the call out; `path` may exist afterwards if it is a create."""
        if kind == "put_new":
            self.created.add(path)
        return call(path, *rest, **options)


def _creates(store: ObjectStore, path: str, data: bytes) -> bool:
    try:
        store.put_new(path, data)
    except ObjectExistsError:
        return False
    return True


def _read(store: ObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path)
    except ObjectNotFoundError:
        return None


def _lists(store: ObjectStore, directory: str, name: str) -> list[bool]:
    """Whether each kind of listing shows `name`."""
    return [
        f"{directory}/{name}" in {item.path for item in store.list(directory)},
        name in store.list_names(directory),
    ]


def _overwrites(store: ObjectStore, directory: str) -> str | None:
    path = f"{directory}/object"
    store.put_new(path, b"first")
    if _creates(store, path, b"second"):
        return "a second create of an object replaced it"
    return None if _read(store, path) == b"first" else "a create was refused, and changed the object"


def _reads_late(store: ObjectStore, directory: str) -> str | None:
    for number in range(_ROUNDS):
        path, data = f"{directory}/{number}", b"object %d" % number
        if _read(store, path) is not None:
            return "an object could be read before it was created"
        store.put_new(path, data)
        if _read(store, path) != data:
            return "an object could not be read right after it was created"
        if store.get_range(path, 2, 3) != data[2:5] or store.get_tail(path, 3) != data[-3:]:
            return "a read of a part of an object returned other bytes"
    return None


def _deletes_late(store: ObjectStore, directory: str) -> str | None:
    store.put_new(f"{directory}/kept", b"kept")
    for number in range(_ROUNDS):
        path = f"{directory}/{number}"
        store.put_new(path, b"first")
        store.delete(path)
        if _read(store, path) is not None:
            return "an object could be read right after it was deleted"
        if any(_lists(store, directory, str(number))):
            return "a listing showed an object right after it was deleted"
        if not _creates(store, path, b"second") or _read(store, path) != b"second":
            return "an object could not be created again after it was deleted"
    return None


def _lists_late(store: ObjectStore, directory: str) -> str | None:
    for number in range(_ROUNDS):
        store.put_new(f"{directory}/few/{number}", b"")
        if not all(_lists(store, f"{directory}/few", str(number))):
            return "a listing did not show an object right after it was created"
    many = [f"{directory}/many/{number}" for number in range(_LISTED)]
    for _ in in_order(lambda path: store.put_new(path, b""), many, _AT_ONCE, "memwal-check"):
        pass
    missing = _LISTED - len({item.path for item in store.list(f"{directory}/many")}.intersection(many))
    return f"a listing of {_LISTED} objects lacked {missing} of them" if missing else None


def _races(store: ObjectStore, directory: str) -> str | None:
    races = [(f"{directory}/{race}", b"%d" % racer) for race in range(_RACES) for racer in range(_RACERS)]
    won = in_order(lambda race: race if _creates(store, *race) else None, races, _RACERS, "memwal-check")
    winners = [race for race in won if race is not None]
    wins = Counter(path for path, _ in winners)
    if len(wins) < _RACES or len(winners) > _RACES:
        return (
            f"{_RACERS} concurrent creates each of {_RACES} objects succeeded {len(winners)} times instead of {_RACES}"
        )
    return (
        None if all(_read(store, path) == data for path, data in winners) else "the bytes of a refused create were kept"
    )


_ONE_BY_ONE = {"overwrite protection": _overwrites, "read after write": _reads_late, "delete visibility": _deletes_late}
_CONCURRENT = {"racing creates": _races, "listing after create": _lists_late}
