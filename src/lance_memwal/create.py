"""Making a table, and putting a MemWAL index on an existing one.

Owns the commit of the index entry. Invariants:

1. The entry is committed by us, with every stored setting. Lance lets such a commit pass over concurrent ones that only
   drop or rename columns, so the version that came out is checked again: an entry that does not fit its columns is taken
   back. Of two initialisations one wins; what the loser is told says so. This is for a table without an entry only: on a
   live one such a commit, if it started before a mark, lands over it and the mark is gone, so that its details change by
   `lance_memwal.lance.commit.commit_details` alone (see `lance_memwal.sstable.maintained`).
2. Of two calls that make the same table one wins. Everything that can be refused is refused before anything is written.
3. A second initialisation is refused; the rows of a table are never touched.
5. A table that gets an index has no key twice and none that is null, whoever marked its primary key.
4. Shards that hold rows are never taken over unasked: after an overwrite they belong to rows that are gone.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import lance
import pyarrow as pa
from lance.dataset import LanceOperation
from lance.fragment import write_fragments

from lance_memwal.arguments import check_flag, check_instance, check_text
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.config import WriterConfig
from lance_memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    UnavailableError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.commit import mark as record
from lance_memwal.lance.details import INDEX_NAME, TABLE_ID_KEY, MemWalDetails
from lance_memwal.lance.manifest import version_path
from lance_memwal.lance.marks import counted
from lance_memwal.lance.mem_wal_index import commit_entry
from lance_memwal.lance.primary_key import check_rows, key_names, keyed_schema, mark, unmark
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import read_tail
from lance_memwal.log.shards import list_shards, new_table_id, newest_manifests
from lance_memwal.log.tail import unflushed
from lance_memwal.memtable.memtable import aligned
from lance_memwal.rows.blobs import FileVersion, version_of_new_files
from lance_memwal.rows.column_types import check_columns
from lance_memwal.rows.dictionaries import with_wide_indices
from lance_memwal.rows.fit import changed_columns
from lance_memwal.rows.ingest import to_batches
from lance_memwal.rows.json_values import holds_json, spelled
from lance_memwal.rows.key_encoding import is_key_type_of_others, primary_key_columns
from lance_memwal.rows.keys import check_unique_keys
from lance_memwal.rows.merging import MERGE_KEY, Merge, check_merge, encode_merge
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.sharding import ONE_SHARD, Sharding, check_sharding
from lance_memwal.sstable.maintained import check_choice_of_indexes, named_indexes, names_of_all
from lance_memwal.sstable.mirrors import check_maintained
from lance_memwal.store.check import check_creates
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.sequenced import FEW_TRIES, attempts
from lance_memwal.types import ShardManifest

_LOG = logging.getLogger(__name__)
_OWN_PREFIX = "memwal."  # the id and the merge of a table, which its defaults hold too: never copied to another table
LEFTOVERS = (
    "call lance_memwal.enable(adopt_shards=True) if they belong to the table as it is now, or remove its _mem_wal "
    "directory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a user chose for the MemWAL index of a table."""

    sharding: Sharding = ONE_SHARD
    maintained_indexes: str | Sequence[str] | None = "all"
    writer_defaults: WriterConfig | Mapping[str, Any] | None = None
    allow_keys_across_shards: bool = False
    merge: Merge | None = None

    def check(self, schema: pa.Schema, primary_key: Sequence[str], indexes: Sequence[str]) -> None:
        """Return only if a table with these columns, key and indexes can have this index."""
        check_sharding(
            self.sharding, schema, primary_key=primary_key, allow_keys_across_shards=self.allow_keys_across_shards
        )
        check_flag("allow_keys_across_shards", self.allow_keys_across_shards)
        check_choice_of_indexes(self.maintained_indexes, indexes)
        check_merge(self.merge, schema, primary_key, self.sharding.column)
        _defaults(self.writer_defaults)


def write_base(
    location: Location, data_or_schema: Any, primary_key: str | Sequence[str] | None, choices: Choices
) -> BaseTable:
    """Create the base table, with rows if data is given; nothing is written if `choices` do not fit it, or if the place
    holds the rows of a table whose base is gone."""
    rows = _first_rows(data_or_schema, primary_key)
    key = primary_key_columns(rows.schema)
    if key:
        check_unique_keys(rows.to_batches, key)
    choices.check(rows.schema, primary_key_columns(rows.schema), ())
    check_columns(rows.schema, version_of_new_files(rows.schema))
    rows = _with_spelled_json(rows)
    _refuse_leftovers_here(location)
    check_creates(location)
    try:
        with lance_errors("creating the base table"):
            _commit_first(location, rows)
    except (ConflictError, InvalidInputError, UnavailableError):
        if BaseTable.open(location) is None:
            raise
        raise ConflictError(f"another call made a table at {location.describe()} meanwhile; open it") from None
    base = BaseTable.open(location)
    if base is None:
        raise ConflictError(f"the table at {location.describe()} vanished while it was made; retry")
    return base


def _refuse_leftovers_here(location: Location) -> None:
    try:
        refuse_leftovers(
            location,
            "wait, if the table is being dropped; else remove its _mem_wal directory if they are not needed; to keep them, write "
            "the base table with Lance and call lance_memwal.enable(adopt_shards=True)",
        )
    except InvalidInputError:
        if BaseTable.open(location) is None:
            raise  # else they are rows of the table that another call made meanwhile


def _commit_first(location: Location, rows: pa.Table) -> None:
    """Create the first version; fails if there is one. (Lance's own "create" overwrites what came in between.)"""
    uri, options, version = location.dataset_uri, location.storage_options, version_of_new_files(rows.schema)
    if version is not None and not rows.num_rows:
        _commit_empty(location, rows, version)
        return
    fragments = write_fragments(rows, uri, mode="create", data_storage_version=version, storage_options=options)
    lance.LanceDataset.commit(
        uri,
        LanceOperation.Overwrite(rows.schema, fragments),
        max_retries=0,
        enable_v2_manifest_paths=True,
        storage_options=options,
    )


def _commit_empty(location: Location, rows: pa.Table, version: FileVersion) -> None:
    """The first version of a table without rows, with files of this version.

    A commit of Lance takes the version from its fragments, of which there are none: the same table is made elsewhere, and its
    objects are created here, the manifest last.
    """
    try:
        directory = tempfile.TemporaryDirectory(prefix="memwal-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UnavailableError(
            f"no temporary directory for the first version of the table (see TMPDIR): {error}"
        ) from None
    with directory as root:
        lance.write_dataset(rows, root, data_storage_version=version, enable_v2_manifest_paths=True)
        elsewhere = resolve(root).store
        for path in (*(f"_transactions/{name}" for name in elsewhere.list_names("_transactions")), version_path(1)):
            try:
                location.store.put_new(path, elsewhere.get(path))
            except ObjectExistsError:
                raise ConflictError(f"another call made a table at {location.describe()} meanwhile; open it") from None


def _first_rows(data_or_schema: Any, primary_key: str | Sequence[str] | None) -> pa.Table:
    if isinstance(data_or_schema, pa.Schema):
        return no_rows(keyed_schema(_wide(data_or_schema), primary_key))
    batches = to_batches(data_or_schema, pa.schema([]))
    columns = batches[0].schema if batches else getattr(data_or_schema, "schema", None)
    if not isinstance(columns, pa.Schema):
        raise InvalidInputError("data without batches has no columns; give a schema")
    schema = keyed_schema(_wide(columns), primary_key)
    try:
        return pa.Table.from_batches(list(map(aligned, batches)), schema=columns).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(f"the data does not fit the primary key: {error}") from None


def _with_spelled_json(rows: pa.Table) -> pa.Table:
    json_columns = [index for index, field in enumerate(rows.schema) if holds_json(field.type)]
    if not json_columns:
        return rows
    batches = [changed_columns(batch, json_columns, spelled) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, schema=rows.schema)


def _wide(schema: pa.Schema) -> pa.Schema:
    return pa.schema(map(with_wide_indices, schema), metadata=schema.metadata)


def check_existing(
    base: BaseTable, data_or_schema: Any, primary_key: str | Sequence[str] | None, merge: Merge | None = None
) -> None:
    """Return only if an existing table is what a call with `exist_ok=True` asked for: same columns, same key, same merge."""
    if merge is not None and base.details is not None and base.merge != merge:
        raise InvalidInputError(f"the table at {base.location.describe()} merges its rows in another way: {base.merge}")
    if isinstance(data_or_schema, pa.Schema):
        asked = [(field.name, field.type) for field in _wide(data_or_schema)]
        found = [(field.name, field.type) for field in base.schema]
        if asked != found:
            raise InvalidInputError(
                f"the table at {base.location.describe()} has other columns: {', '.join(base.schema.names)}"
            )
    if primary_key is not None and key_names(primary_key) != base.primary_key:
        key = ", ".join(base.primary_key) or "none"
        raise InvalidInputError(f"the table at {base.location.describe()} has another primary key: {key}")


def make_details(base: BaseTable, choices: Choices) -> MemWalDetails:
    """The details that a table with these choices records; refused if they do not fit it."""
    choices.check(base.schema, base.primary_key, [entry.name for entry in base.index_entries])
    names = named_indexes(choices.maintained_indexes)
    check_maintained(base, names)
    spec = choices.sharding.spec(base.schema, base.column_ids)
    return MemWalDetails(
        num_shards=choices.sharding.num_shards,
        sharding_specs=() if spec is None else (spec,),
        maintained_indexes=names_of_all(base) if choices.maintained_indexes == "all" else names,
        maintain_all_indexes=choices.maintained_indexes == "all",
        writer_config_defaults={**_defaults(choices.writer_defaults), **_stored(choices.merge, base)},
        compacted={},
        index_catchup={},
    )


def _stored(merge: Merge | None, base: BaseTable) -> dict[str, str]:
    return {} if merge is None else {MERGE_KEY: encode_merge(merge, base.column_ids)}


def _defaults(given: WriterConfig | Mapping[str, Any] | None) -> dict[str, str]:
    if given is None:
        return {}
    if isinstance(given, WriterConfig):
        return given.to_defaults()
    check_instance("writer_defaults", given, Mapping, "a WriterConfig or a dict")
    texts = {check_text("a writer default", name): check_text(name, str(value)) for name, value in given.items()}
    for name in ("shard_id", "shard_spec_id"):
        if name in texts:
            raise InvalidInputError(f"{name} belongs to one writer and is never a table default")
    users = {name: text for name, text in texts.items() if not name.startswith(_OWN_PREFIX)}
    return {**users, **WriterConfig.from_defaults(given).to_defaults()}


def enable_base(base: BaseTable, primary_key: str | Sequence[str] | None, choices: Choices) -> BaseTable:
    """The table with a MemWAL index as chosen and, if one is given, this primary key; else it is as it was.

    The rows of the version that has the index have the key: others may have appended while it was set.
    """
    _refuse_enabled(base)
    key = base.primary_key if primary_key is None else key_names(primary_key)
    if base.primary_key not in ((), key):
        raise InvalidInputError(
            f"the primary key of {base.location.describe()} is ({', '.join(base.primary_key)}); Lance never changes it"
        )
    choices.check(keyed_schema(base.schema, key or None), key, [entry.name for entry in base.index_entries])
    check_creates(base.location)
    if not key:
        return install(base, choices)
    check_rows(base, key)
    try:
        enabled = install(base if base.primary_key else mark(base, key), choices)
    except BaseException:
        newest = base.refresh()
        if newest.details is None:  # else another call was faster, and its index stands on the key
            unmark(newest, base)
        raise
    if _fragments(enabled) != _fragments(base):
        try:
            check_rows(enabled, key)
        except BaseException:
            _take_back(enabled)
            unmark(enabled, base)
            raise
    return enabled


def _fragments(base: BaseTable) -> list[str]:
    return [str(fragment.metadata) for fragment in base.dataset.get_fragments()]


def _refuse_enabled(base: BaseTable) -> None:
    if base.details is not None:
        raise InvalidInputError(f"the table at {base.location.describe()} has a MemWAL index already; open it")


def _take_back(base: BaseTable) -> None:
    with lance_errors("taking the MemWAL index back"):
        base.handle().drop_index(INDEX_NAME)


def install(base: BaseTable, choices: Choices) -> BaseTable:
    """The table with a MemWAL index as chosen. `ConflictError` if somebody else's came first, or the columns changed."""
    _refuse_enabled(base)
    base.check_columns()
    base.check_compactable()
    _note_own_keys(base)
    for _ in attempts(f"the base table at {base.location.describe()}"):
        details = make_details(base, choices)
        entry_id = SYSTEM_CLOCK.uuid4()
        settings = {**details.writer_config_defaults, TABLE_ID_KEY: new_table_id(base.location)}
        made = replace(details, writer_config_defaults=settings, compacted=_marks_of_shards(base.location))
        newest = base.attempt("enabling the table", partial(commit_entry, base, made, entry_id))
        if _entry_id(newest) == entry_id:
            return _without_fragments(_fitting(base, newest, choices, details))
        if newest.details is not None:
            raise ConflictError(f"another call enabled the table at {base.location.describe()} meanwhile; open it")
        base = newest
    raise AssertionError("the last attempt returns or raises")


def _note_own_keys(base: BaseTable) -> None:
    """Say so if no other implementation can write the table or read its fresh rows (RFC 0012)."""
    own = [name for name in base.primary_key if not is_key_type_of_others(base.schema.field(name).type)]
    if own:
        _LOG.warning(
            "the table has a key that only lance-memwal knows: other implementations of the MemWAL index can neither flush "
            "its rows nor read the fresh ones; its base table is one for plain Lance as any other [table=%s, key=%s]",
            base.location.describe(),
            ", ".join(f"{name} {base.schema.field(name).type}" for name in own),
        )


def _marks_of_shards(location: Location) -> dict[str, int]:
    """What the shards that are there no longer list: it belongs to the rows of the base table, as that is now."""
    return {m.shard_id: m.unlisted_mark for m in newest_manifests(location) if m.unlisted_mark > 0}


def _entry_id(base: BaseTable) -> str | None:
    entry = base.manifest.index(INDEX_NAME)
    return None if entry is None else str(entry.uuid)


def _fitting(base: BaseTable, newest: BaseTable, choices: Choices, details: MemWalDetails) -> BaseTable:
    """`newest` if the entry still fits its columns; else the entry is taken back."""
    if newest.version == base.version + 1 or _still_fits(base, newest, choices, details):
        return newest
    _take_back(newest)
    raise ConflictError(f"the columns of {base.location.describe()} changed while it was enabled; retry")


def _without_fragments(base: BaseTable) -> BaseTable:
    """The table with an index entry that names no fragments, as pylance's own; `base` if they are of no consequence.

    An entry that is committed through the API has a set of fragments, an empty one. On a table with stable row ids Lance
    adds to it the fragments of updates, and then refuses to compact files of which it names some but not all. Whenever
    Lance records a mark, it writes the entry without the set.
    """
    reason: MemWalError | None = None
    if not base.manifest.has_stable_row_ids:
        return base
    for _ in range(FEW_TRIES):
        try:
            return record(base, counted(base, {}))
        except MemWalError as error:
            newest, reason = base.refresh(), error
            if newest.version == base.version:
                break
            base = newest
    _LOG.warning("the MemWAL index still names fragments [table=%s]: %s", base.location.describe(), reason)
    return base


def _still_fits(base: BaseTable, newest: BaseTable, choices: Choices, details: MemWalDetails) -> bool:
    try:
        now = make_details(newest, choices)
    except InvalidInputError:
        return False
    if choices.maintained_indexes == "all":  # an index that was made meanwhile is welcome
        now = replace(now, maintained_indexes=details.maintained_indexes)
    return newest.primary_key == base.primary_key and now == details


def refuse_leftovers(location: Location, way_out: str) -> None:
    """Raise if shards of an earlier table at this place hold rows; `way_out` says how the caller can go on."""
    for shard_id in list_shards(location):
        manifest = ShardManifestStore(location, shard_id).read_latest() or ShardManifest(version=0, shard_id=shard_id)
        if manifest.sstables or _holds_rows(location, manifest):
            raise InvalidInputError(
                f"shard {shard_id} of the table at {location.describe()} holds rows of before; {way_out}"
            )


def _holds_rows(location: Location, manifest: ShardManifest) -> bool:
    """Whether the log holds a row that is in no SSTable, or what cannot be read; marks and sentinels are none."""
    try:
        return any(unflushed(read_tail(location, manifest, tag=None), manifest.current_generation))
    except (CorruptDataError, UnsupportedFormatError):
        return True
