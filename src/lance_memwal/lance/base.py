"""The base table as the engine sees it: one version of it, with schema, field ids, primary key and MemWAL details.

Owns `BaseTable` and the translation of Lance's exceptions. Invariants:

1. All answers of one `BaseTable` are about one version; `refresh` returns another value, it never changes this one.
2. Index entries and feature flags come from that version's manifest file, which is read once, when the version is found:
   they can be had when somebody has cleaned the version up meanwhile.
3. "There is no base table" is an answer (None) that the store confirmed; a storage failure is an error.
4. A Lance dataset moves on when something is committed through it. Commits go through a `handle` of their own, so that
   no scan, lookup or cache sees its version change.
5. A table that was dropped and created anew at the same place is noticed, also at the same version number: the manifest
   that this value was opened from is no longer the same object. `origin` tells such tables apart.
6. What Lance keeps of old versions (open files of their indexes, manifests) is bounded: it lives as long as its session, so
   a table that moves on gets a new session now and then.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import lance
import pyarrow as pa
from lance.commit import CommitConflictError

from lance_memwal.clock import RETRY, SYSTEM_CLOCK
from lance_memwal.errors import (
    CollectedError,
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ObjectNotFoundError,
    UnavailableError,
    UnsupportedFormatError,
    is_panic,
    reason_of,
)
from lance_memwal.lance.column_past import RULINGS_KEY, ColumnPast, HeldIds, named_fields, rulings_of
from lance_memwal.lance.damage import find_damage, version_names
from lance_memwal.lance.details import INDEX_NAME, TABLE_ID_KEY, MemWalDetails, decode_details
from lance_memwal.lance.door import lance_at
from lance_memwal.lance.hand_made import hand_commit_is_safe
from lance_memwal.lance.manifest import (
    VERSIONS_DIR,
    IndexEntry,
    LanceManifest,
    at_version,
    data_path,
    deletion_path,
    old_version_path,
    parse_fragment,
    parse_lance_manifest,
    version_path,
)
from lance_memwal.process.background import refuse_at_exit
from lance_memwal.process.forking import use_lance
from lance_memwal.rows.column_types import check_columns
from lance_memwal.rows.key_encoding import check_primary_key, primary_key_columns
from lance_memwal.rows.merging import MERGE_KEY, SEQUENCE_KEY, LastWrite, Merge, stored_merge
from lance_memwal.rows.past_columns import NO_FIELD
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Manual, Sharding, from_specs
from lance_memwal.store.location import Location
from lance_memwal.store.port import ObjectMeta
from lance_memwal.store.sequenced import FEW_TRIES, attempts
from lance_memwal.types import BaseMark

T = TypeVar("T")
TAG_DIGITS = 8
_LOG = logging.getLogger(__name__)
RESERVED = b"memwal."  # how the keys of schema metadata begin that are ours
_FINDING = ("BTreeIndexDetails", "BitmapIndexDetails")  # an index of words or vectors finds no key
_QUERY = re.compile(r"\?\S+=\S+")
_MAX_TEXT = 400
_VERSIONS_PER_SESSION = 64  # the caches of Lance count bytes, not open files; a new session begins with cold ones
_DIRECTORIES = ("data", "_deletions", "_indices", "_transactions", "_versions")  # of a base; the manifests last


@contextmanager
def lance_errors(action: str) -> Iterator[None]:
    """Turn what Lance raises into our errors.

    Bad input is `InvalidInputError`, a commit that Lance knows to be lost `ConflictError`, everything else
    `UnavailableError`.

    The original does not stay visible behind ours: its text may hold a signed URL.
    """
    use_lance()
    refuse_at_exit()
    try:
        yield
    except MemWalError:
        raise
    except (ValueError, TypeError, NotImplementedError, pa.ArrowException) as error:
        raise InvalidInputError(f"{action}: {_text(error)}") from None
    except CommitConflictError as error:
        raise ConflictError(f"{action}: {_text(error)}") from None
    except Exception as error:
        raise UnavailableError(f"{action}: {_text(error)}") from None
    except BaseException as error:
        if is_panic(error):
            raise UnavailableError(f"{action}: Lance gave up: {_text(error)}", retryable=False) from None
        raise


def lance_read(location: Location, path: str, read: Callable[[], T]) -> T:
    """What `read` returns. If Lance cannot read the file at `path`, say why.

    The store decides: an object that is absent or out of reach is the store's own error; one that the store delivers,
    but that Lance refuses twice, is corrupt.
    """
    use_lance()  # before anything that is said of the file
    try:
        with lance_errors("reading a Lance file"):
            return read()
    except (InvalidInputError, UnavailableError):
        location.store.get(path)
    try:
        with lance_errors("reading a Lance file"):
            return read()
    except (InvalidInputError, UnavailableError) as error:
        raise _refused(error, path) from None


@contextmanager
def lance_reading(
    location: Location, action: str, directory: str = "", *, manifest_path: str | None = None, given: bool = False
) -> Iterator[None]:
    """Turn what Lance raises while it reads the dataset in `directory` into our errors.

    What is missing or damaged is `CorruptDataError` with its path. `given` says that a filter or query of the caller takes
    part: if the files look well, that is what Lance refuses, and `InvalidInputError` is right. Without one it is not.
    """
    use_lance()  # before anything that is said of the files
    raw: BaseException | None = None
    try:
        with lance_errors(action):
            try:
                yield
            except BaseException as error:
                raw = error
                raise
    except (InvalidInputError, UnavailableError) as error:
        if raw is None or raw is error:  # ours, and not about the files: a filter that cannot be applied, say
            raise
        found = find_damage(location, directory, manifest_path=manifest_path)
        if found is not None:
            raise found from None
        if given or isinstance(error, UnavailableError):  # a panic too: Lance also gives up on how it was called
            raise
        raise _refused(error, manifest_path or directory or None) from None


def take_rows(dataset: lance.LanceDataset, row_ids: list[int], columns: Sequence[str]) -> pa.Table:
    """`columns` of the rows with these ids, in their order (`take` wants places); the caller translates what Lance raises."""
    taken = dataset._take_rows(row_ids, columns=list(columns))  # noqa: SLF001
    return taken if isinstance(taken, pa.Table) else pa.table(taken)


def _refused(error: MemWalError, path: str | None) -> CorruptDataError | UnsupportedFormatError:
    """What to say of a file that Lance refuses although nobody asked for anything special."""
    if isinstance(error.__context__, NotImplementedError):
        return UnsupportedFormatError(f"not understood by this version: {error}", path=path)
    return CorruptDataError(str(error), path=path)


def _text(error: BaseException) -> str:
    """What an exception of Lance says, without query parts of URLs and without the place in Lance's sources."""
    return _QUERY.sub("?...", reason_of(error))[:_MAX_TEXT]


@dataclass(frozen=True)
class BaseTable:
    """One version of the base table: `version`, whose manifest file is `stamp`, its bytes and what they say.

    `dataset` is read by everybody who holds this value: nothing is ever committed through it (see `handle`).
    """

    location: Location
    dataset: lance.LanceDataset
    version: int
    stamp: ObjectMeta
    origin: object = field(repr=False)
    manifest_bytes: bytes = field(repr=False, compare=False)
    manifest: LanceManifest = field(repr=False, compare=False)
    session_version: int = field(repr=False, compare=False)

    @classmethod
    def open(cls, location: Location, *, version: int | None = None) -> BaseTable | None:
        """The newest version (or `version`) of the base table, or None if the store holds none."""
        for attempt in range(FEW_TRIES):
            _check_is_file(location, version)
            try:
                with lance_errors("opening the base table"):
                    dataset = lance_at(location).dataset(version=version)
                return cls._at(location, dataset, object())
            except (CorruptDataError, InvalidInputError, UnavailableError, ObjectNotFoundError):
                if version is None and not cls.is_there(location):
                    return None
                if version is not None or attempt == FEW_TRIES - 1:  # else it may have been cleaned up meanwhile
                    _raise_damage(location, version)
                    raise
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    def is_there(location: Location) -> bool:
        """Whether the store holds a version of the base table: one listing."""
        return bool(location.store.list_names(VERSIONS_DIR))

    @classmethod
    def find(cls, location: Location, version: int) -> BaseTable | None:
        """One version of the base table; None if the store does not hold it, or not any more."""
        try:
            return cls.open(location, version=version)
        except (InvalidInputError, UnavailableError, ObjectNotFoundError):
            if version in version_names(location):  # it is there, and cannot be read now
                raise
            return None

    @classmethod
    def need(cls, location: Location, *, version: int | None = None) -> BaseTable:
        """The newest version (or `version`); `InvalidInputError` if there is no table."""
        base = cls.open(location, version=version)
        if base is None:
            raise InvalidInputError(
                f"there is no table at {location.describe()}; create it with lance_memwal.create_table"
            )
        return base

    @classmethod
    def _at(
        cls, location: Location, dataset: lance.LanceDataset, origin: object, session_version: int | None = None
    ) -> BaseTable:
        """The version of `dataset`, with its manifest; its session began with that version, or with an earlier one."""
        version = int(dataset.version)
        stamp = at_version(version, location.store.head)
        data = location.store.get(stamp.path)
        manifest = parse_lance_manifest(data, path=stamp.path)
        return cls(location, dataset, version, stamp, origin, data, manifest, session_version or version)

    @classmethod
    def open_newest_readable(cls, location: Location) -> BaseTable | None:
        """The newest version that can be read, for repair; None if the store holds none at all."""
        try:
            return cls.open(location)
        except CorruptDataError:
            for version in sorted(version_names(location), reverse=True):
                try:
                    found = cls.open(location, version=version)
                    if found is not None:
                        return found
                except MemWalError as error:
                    _LOG.info("a version of the base table cannot be read [version=%d]: %s", version, error)
            raise

    def handle(self) -> lance.LanceDataset:
        """This version as a dataset that nobody else holds; committing through it moves no other. Costs no request."""
        return copy.copy(self.dataset)

    def tags(self) -> dict[str, int]:
        """The versions that tags of the table name now, on whatever branch.

        Lance lists their names and then reads each: where one went meanwhile, all of them are listed again.
        """
        for attempt in range(FEW_TRIES - 1):
            try:
                return self._listed_tags()
            except MemWalError:
                RETRY.wait(SYSTEM_CLOCK, attempt)
        return self._listed_tags()

    def tags_to_write(self) -> Any:
        """Lance's tags of the table, to create, move and delete them; raises what Lance raises."""
        if not self.location.is_local:
            return self.handle().tags
        return lance.dataset(self.location.object_uri).tags

    def _listed_tags(self) -> dict[str, int]:
        with lance_errors("listing the tags of the base table"):
            return {name: int(tag["version"]) for name, tag in self.handle().tags.list().items()}

    def commit(self, operation: Any) -> None:
        """Commit an operation of Lance on this version, and on no other; raises what Lance raises."""
        lance.LanceDataset.commit(
            self.location.dataset_uri,
            operation,
            read_version=self.version,
            max_retries=0,
            storage_options=self.location.storage_options,
        )

    def attempt(self, action: str, commit: Callable[[], object]) -> BaseTable:
        """The newest version after an attempt to commit on this one, whoever won; its error if nobody committed.

        The caller looks at what the version says: the attempt may have landed although it failed.
        """
        try:
            with lance_errors(action):
                commit()
        except MemWalError:
            newest = self.refresh()
            if newest.version == self.version:
                raise
            return newest
        return self.refresh()

    def commit_until(
        self, action: str, commit: Callable[[BaseTable], object], landed: Callable[[BaseTable], bool]
    ) -> BaseTable:
        """The first version from this one on that has `landed`; until then `commit` commits on the newest.

        `landed` decides, and not the error of a commit: it may have landed although it failed.
        """
        base = self
        for _ in attempts(f"the base table at {self.location.describe()}"):
            if landed(base):
                return base
            base = base.attempt(action, partial(commit, base))
        raise AssertionError("the last attempt returns or raises")

    def refresh(self) -> BaseTable:
        """The newest version: this value if nothing was committed since, else a new one."""
        use_lance()
        refuse_at_exit()
        try:
            newest = int(self.dataset.latest_version)
        except BaseException as error:  # entered only now, since every read comes this way
            if isinstance(error, Exception) and not self.location.store.list_names(VERSIONS_DIR):
                return BaseTable.need(self.location)  # which says that there is no table any more
            with lance_reading(self.location, "looking for the newest version of the base table"):
                raise
        if not self._is_still_there():
            return BaseTable.need(self.location)
        if newest == self.version:
            return self
        _check_is_file(self.location, newest)
        try:
            with lance_errors("opening the newest version of the base table"):
                if newest - self.session_version >= _VERSIONS_PER_SESSION:
                    return self._at(self.location, lance_at(self.location).dataset(version=newest), self.origin)
                dataset = self.dataset.checkout_version(newest)
            return self._at(self.location, dataset, self.origin, self.session_version)
        except (InvalidInputError, UnavailableError, ObjectNotFoundError):
            if self._exists(self.path_of(newest)):
                _raise_damage(self.location, None)
                raise
        return BaseTable.need(self.location)  # it was cleaned up already

    @contextmanager
    def reading(self, action: str, *, given: bool = False) -> Iterator[None]:
        """`lance_reading` for reads of this version; `CollectedError` if they fail because somebody cleaned it up.

        A file that is missing although the version is the newest one is damage.
        """
        try:
            with lance_reading(self.location, action, manifest_path=self.stamp.path, given=given):
                yield
        except (InvalidInputError, UnavailableError, CorruptDataError):
            gone = self._missing()
            if gone is None:
                raise
            if gone != self.stamp.path and int(self.dataset.latest_version) == self.version:
                raise CorruptDataError(f"{action}: a file of the newest version is not there", path=gone) from None
            raise CollectedError(f"{action}: version {self.version} was cleaned up meanwhile; read again") from None

    def _missing(self) -> str | None:
        """Something of this version that is not there any more, or None."""
        if not self._exists(self.stamp.path):
            return self.stamp.path
        if not hand_commit_is_safe(self.manifest) and not self.manifest.has_stable_row_ids:
            return None  # files may lie elsewhere
        names = self.location.store.list_names
        there = {f"{directory}/{name}" for directory in ("data", "_deletions", "_indices") for name in names(directory)}
        indexes = {f"_indices/{entry.uuid}" for entry in self.index_entries if entry.name != INDEX_NAME}
        return min((self.files() | indexes) - there, default=None)

    def files(self) -> set[str]:
        """The data files and deletion vectors of this version."""
        found = set()
        for fragment in self.manifest.fragments():
            found |= {data_path(file.path) for file in fragment.files if file.path}
            if fragment.deletion is not None:
                found.add(deletion_path(fragment.id, fragment.deletion))
        return found

    def make_durable(self) -> None:
        """Let this version survive power loss, whoever wrote it: Lance syncs nothing, and others may have written any part.

        The manifest comes last. Nothing is done twice for one value, and what did not change since it was synced costs a look.
        """
        _ = self._durable

    @cached_property
    def _durable(self) -> None:
        if not self.location.is_local:  # what the service acknowledged is durable
            return
        for directory in _DIRECTORIES:
            with suppress(ObjectNotFoundError):  # a table has them as it needs them
                self.location.store.sync_tree(directory)

    def _exists(self, path: str) -> bool:
        try:
            self.location.store.head(path)
        except ObjectNotFoundError:
            return False
        return True

    def _is_still_there(self) -> bool:
        """Whether the manifest that this value was opened from is the one that lies there now."""
        try:
            return self.location.store.head(self.stamp.path) == self.stamp
        except ObjectNotFoundError:  # cleaned up, or gone with its table: open anew, which is right for both
            return False

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, metadata included, except for what only memwal knows."""
        schema = self.dataset.schema
        kept = {name: value for name, value in (schema.metadata or {}).items() if not name.startswith(RESERVED)}
        fields = zip(schema, self.dataset.lance_schema.fields(), strict=True)
        return pa.schema([_as_named(field, item) for field, item in fields], metadata=kept or None)

    @cached_property
    def columns(self) -> TableSchema:
        """The columns with their field ids, as rows are fitted to them."""
        rulings = rulings_of(None if self.details is None else self.details.writer_config_defaults.get(RULINGS_KEY))
        fields = named_fields(self.manifest.fields)
        mark = BaseMark(self.version, self._fragment_ids)
        past = ColumnPast(self.location, self.table_id, mark, fields, self._held_ids, rulings)
        return TableSchema.from_lance(self.schema, self.dataset.lance_schema, past)

    @property
    def _fragment_ids(self) -> int:
        """How many fragment ids the table has given until this version."""
        largest = self.manifest.max_fragment_id
        return (max(self.fragment_messages, default=-1) if largest is None else largest) + 1

    def _held_ids(self) -> HeldIds:
        """The first data file of the oldest fragment was written with the columns of its time."""
        messages = self.fragment_messages
        if not messages:
            return HeldIds()
        oldest = min(messages)
        ids = [number for file in parse_fragment(messages[oldest]).files[:1] for number in file.field_ids]
        return HeldIds(oldest, max((number for number in ids if number < NO_FIELD), default=-1))

    @cached_property
    def field_ids(self) -> tuple[int, ...]:
        """The Lance ids of all fields, nested ones included, in pre-order."""
        return tuple(number for item in self.dataset.lance_schema.fields() for number in _ids(item))

    @cached_property
    def column_ids(self) -> dict[str, int]:
        """The Lance id of every top-level column."""
        return {item.name(): int(item.id()) for item in self.dataset.lance_schema.fields()}

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """The key columns in key order, checked; empty for an append-only table."""
        columns = primary_key_columns(self.schema)
        check_primary_key(self.schema, columns)
        return tuple(columns)

    def check_columns(self) -> None:
        """Return only if rows can be written to this table; `InvalidInputError` names the column that prevents it."""
        check_columns(self.schema, self.data_storage_version)

    @cached_property
    def data_storage_version(self) -> str:
        """The Lance file version of data files."""
        return str(self.dataset.data_storage_version)

    @property
    def takes_hand_commit(self) -> bool:
        """Whether a version made by `lance_memwal.lance.hand_made` may follow this one."""
        return hand_commit_is_safe(self.manifest)

    def check_compactable(self) -> None:
        """Return only if a compaction can commit to this table; `UnsupportedFormatError` for some append-only tables.

        Lance itself can merge rows by key together with the progress, but it cannot append rows with it.
        """
        if self.primary_key or self.takes_hand_commit:
            return
        manifest = self.manifest
        raise UnsupportedFormatError(
            f"the append-only table at {self.location.describe()} cannot be compacted: its base table has features that this "
            f"version does not know (flags {manifest.reader_flags | manifest.writer_flags:#x}, data files "
            f"{manifest.data_storage_version}), such as data files in other places; copy its rows into a new table"
        )

    @property
    def takes_staged_commit(self) -> bool:
        """Whether such a version may hold rows that others wrote: with stable row ids, whoever commits must know their keys."""
        return self.takes_hand_commit and not self.has_stable_row_ids

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their ids when they are replaced or moved."""
        return self.manifest.has_stable_row_ids

    def path_of(self, version: int) -> str:
        """The path of a version's manifest, named as this one's is: Lance names all of a table in one way."""
        return version_path(version) if self.stamp.path == version_path(self.version) else old_version_path(version)

    @cached_property
    def fragment_messages(self) -> dict[int, bytes]:
        """All fragments by id, as they stand in the manifest: equal bytes are the same files with the same deletions."""
        return self.manifest.fragment_messages()

    @property
    def index_entries(self) -> tuple[IndexEntry, ...]:
        """The indexes of this version."""
        return self.manifest.index_entries

    @cached_property
    def is_key_indexed(self) -> bool:
        """Whether Lance finds keys of the base table without reading all of them."""
        key = [self.column_ids[name] for name in self.primary_key]
        return any(list(e.field_ids) == key and e.details_type.endswith(_FINDING) for e in self.index_entries)

    @cached_property
    def sharding(self) -> Sharding:
        """How the MemWAL index spreads rows over shards; a table without an index has manual shards."""
        if self.details is None:
            return Manual()
        return from_specs(self.details.sharding_specs, {number: name for name, number in self.column_ids.items()})

    @cached_property
    def merge(self) -> Merge | None:
        """What a later write of a key does; None: the last write wins."""
        return self._stored_merge(MERGE_KEY)

    def _stored_merge(self, key: str) -> Merge | None:
        text = None if self.details is None else self.details.writer_config_defaults.get(key)
        return stored_merge(text, self.column_ids)

    @cached_property
    def order(self) -> LastWrite | None:
        """The sequence by which rows are put in order: by all writes (`merge`), or by those that ask for it (`note_sequence`).

        None if there is none, this version does not know it, or its column is gone.
        """
        try:
            order = self.merge or self._stored_merge(SEQUENCE_KEY)
            return order if isinstance(order, LastWrite) else None
        except (InvalidInputError, UnsupportedFormatError):
            return None

    @cached_property
    def details(self) -> MemWalDetails | None:
        """The MemWAL details, or None if the table has none (not initialised)."""
        entry = self.manifest.index(INDEX_NAME)
        return None if entry is None else decode_details(entry.details, path=self.stamp.path)

    def need_details(self) -> MemWalDetails:
        """The MemWAL details; an error that says how to get them if the table has no MemWAL index."""
        if self.details is None:
            raise InvalidInputError(
                f"the table at {self.location.describe()} has no MemWAL index: it was never enabled, or its base was "
                "overwritten or the index dropped, and rows in its shards cannot be read. Call lance_memwal.enable(); with "
                "adopt_shards=True it takes over what the shards hold. Table.repair() says whether it can be brought back"
            )
        return self.details

    @cached_property
    def table_id(self) -> str | None:
        """The id of the table, see `lance_memwal.lance.identity`; None if it has none (yet)."""
        details = self.details
        stored = None if details is None else details.writer_config_defaults.get(TABLE_ID_KEY)
        return stored or self.manifest.config(TABLE_ID_KEY)

    @property
    def tag(self) -> str | None:
        """What the entries of this table carry: the first digits of its id."""
        return None if self.table_id is None else self.table_id[:TAG_DIGITS]


class NewestBase:
    """The newest version of one base table, whenever it is asked for; `known` is the last answer. Threads may share it."""

    __slots__ = ("known",)

    def __init__(self, base: BaseTable) -> None:
        self.known = base

    @property
    def location(self) -> Location:
        """Where the table is."""
        return self.known.location

    def __call__(self) -> BaseTable:
        """The newest version."""
        self.known = base = self.known.refresh()
        return base

    def with_index(self) -> BaseTable:
        """The newest version, which has a MemWAL index; else an error that says how it can get one."""
        base = self()
        base.need_details()
        return base

    def readable(self) -> BaseTable:
        """The newest version, or the newest that can be read where that one is damaged."""
        try:
            return self()
        except CorruptDataError:
            base = BaseTable.open_newest_readable(self.location)
            if base is None:
                raise
            return base


def _as_named(field: pa.Field, item: Any) -> pa.Field:
    """`field` with the names that maps inside it have in Lance: Arrow calls theirs key and value whenever it reads a
    schema, and Lance refuses rows whose names differ from the table's."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) or not item.children():
        return field
    if pa.types.is_map(kind):
        key, value = item.children()[0].children()
        parts = [
            _as_named(part, named).with_name(named.name())
            for part, named in ((kind.key_field, key), (kind.item_field, value))
        ]
        return field.with_type(pa.map_(*parts, keys_sorted=kind.keys_sorted))
    inner = [_as_named(kind.field(i), child) for i, child in enumerate(item.children())]
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(inner))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(inner[0]))
    return field.with_type(pa.list_(inner[0])) if pa.types.is_list(kind) else field


def find_no_file(location: Location, version: int | None = None) -> CorruptDataError | None:
    """What is wrong if the manifest of a version (None: the newest) is no file: Lance would wait at a pipe for ever, and
    follow a link. Local paths only; mostly one look at the directory."""
    odd = location.odd_names(VERSIONS_DIR)
    names = version_names(location) if odd else {}
    path = names.get(max(names, default=0) if version is None else version)
    if path is None or path.rpartition("/")[2] not in odd:
        return None
    return CorruptDataError("the manifest of a version is not a regular file: move it away", path=path)


def _check_is_file(location: Location, version: int | None) -> None:
    damage = find_no_file(location, version)
    if damage is not None:
        raise damage


def _raise_damage(location: Location, version: int | None) -> None:
    """Raise what is wrong with the newest version, if anything is; an older one may be gone for good reasons."""
    damage = find_damage(location) if version is None else None
    if isinstance(damage, CorruptDataError) and location.is_local:
        damage.add_note("After a power cut, move the newest file of _versions away: see the page of errors.")
    if damage is not None:
        raise damage


def _ids(item: Any) -> Iterator[int]:
    yield int(item.id())
    for child in item.children():
        yield from _ids(child)
