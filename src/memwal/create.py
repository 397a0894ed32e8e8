"""Making a table, and putting a MemWAL index on an existing one.

Owns the commit of the index entry. Invariants:

1. The entry is committed by us, with every stored setting, in one conditional commit on the version that was checked: a
   concurrent schema change or another initialisation makes it fail, never both succeed.
2. A second initialisation is refused; the rows of a table are never touched.

Called by: the table facade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.dataset import Index, LanceOperation
from lance.lance import Bitmap

from memwal.base_table import BaseTable, lance_errors, lance_options
from memwal.clock import SYSTEM_CLOCK
from memwal.config import WriterConfig
from memwal.errors import ConflictError, InvalidInputError
from memwal.format.index_details import DETAILS_TYPE_URL, INDEX_NAME, MemWalDetails, encode_details
from memwal.format.keys import check_primary_key
from memwal.ingest import to_batches
from memwal.schema import TableSchema
from memwal.sharding import Sharding, check_sharding, num_shards, to_spec
from memwal.store.location import Location

__all__ = ["commit_details", "keyed_schema", "make_details", "write_base"]

_KEY = "lance-schema:unenforced-primary-key"
_POSITION = "lance-schema:unenforced-primary-key:position"


def keyed_schema(schema: pa.Schema, primary_key: str | Sequence[str] | None) -> pa.Schema:
    """`schema` with its primary key marked as Lance wants it; None keeps the marks that are there."""
    if primary_key is None:
        TableSchema.from_arrow(schema)
        return schema
    names = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    if not names or len(set(names)) != len(names):
        raise InvalidInputError(f"primary_key must name at least one column, each once: {names}")
    fields = []
    for field in schema:
        metadata = {k: v for k, v in (field.metadata or {}).items() if not k.startswith(_KEY.encode())}
        if field.name in names:
            metadata[_KEY.encode()] = b"true"
            if len(names) > 1:
                metadata[_POSITION.encode()] = str(names.index(field.name) + 1).encode()
            field = field.with_nullable(False)
        fields.append(field.with_metadata(metadata or None))
    keyed = pa.schema(fields, metadata=schema.metadata)
    check_primary_key(keyed, names)
    TableSchema.from_arrow(keyed)
    return keyed


def write_base(location: Location, data_or_schema: Any, primary_key: str | Sequence[str] | None) -> BaseTable:
    """Create the base table, with rows if data is given."""
    if isinstance(data_or_schema, pa.Schema):
        rows = keyed_schema(data_or_schema, primary_key).empty_table()
    else:
        batches = to_batches(data_or_schema, pa.schema([]))
        if not batches:
            raise InvalidInputError("data without batches has no columns; give a schema")
        schema = keyed_schema(batches[0].schema, primary_key)
        try:
            rows = pa.Table.from_batches(batches).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError(f"the data does not fit the primary key: {error}") from None
    with lance_errors("creating the base table"):
        lance.write_dataset(rows, location.dataset_uri, mode="create", storage_options=lance_options(location))
    base = BaseTable.open(location)
    if base is None:
        raise ConflictError(f"the table at {location.describe()} vanished while it was made; retry")
    return base


def make_details(
    base: BaseTable,
    *,
    sharding: Sharding | None,
    maintained_indexes: str | Sequence[str] | None,
    writer_defaults: WriterConfig | Mapping[str, Any] | None,
    allow_keys_across_shards: bool,
) -> MemWalDetails:
    """The details that a table with these choices records; refused if they do not fit it."""
    check_sharding(
        sharding, base.schema, primary_key=base.primary_key, allow_keys_across_shards=allow_keys_across_shards
    )
    spec = to_spec(sharding, base.schema, base.column_ids)
    every = maintained_indexes == "all"
    if isinstance(maintained_indexes, str) and not every:
        raise InvalidInputError("maintained_indexes is 'all', a list of index names, or None")
    names = [] if every or maintained_indexes is None else list(maintained_indexes)
    known = {entry.name for entry in base.index_entries}
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"the table has no index {name!r}; its indexes: {', '.join(sorted(known)) or 'none'}"
            )
    return MemWalDetails(
        num_shards=num_shards(sharding),
        sharding_specs=() if spec is None else (spec,),
        maintained_indexes=tuple(names),
        maintain_all_indexes=every,
        writer_config_defaults=_defaults(writer_defaults),
        compacted={},
        index_catchup={},
    )


def _defaults(given: WriterConfig | Mapping[str, Any] | None) -> dict[str, str]:
    if given is None:
        return {}
    if isinstance(given, WriterConfig):
        return given.to_defaults()
    names = set(WriterConfig().to_defaults())
    for name in ("shard_id", "shard_spec_id"):
        if name in given:
            raise InvalidInputError(f"{name} belongs to one writer and is never a table default")
    known = WriterConfig().replace(**{k: v for k, v in given.items() if k in names}).to_defaults()
    return {**known, **{k: str(v) for k, v in given.items() if k not in names}}


def commit_details(base: BaseTable, details: MemWalDetails) -> BaseTable:
    """Put the index entry on the table, on exactly the version that was checked."""
    if base.details is not None:
        raise InvalidInputError(f"the table at {base.location.describe()} has a MemWAL index already; open it")
    index = Index(
        uuid=SYSTEM_CLOCK.uuid4(),
        name=INDEX_NAME,
        fields=[],
        dataset_version=base.version,
        fragment_ids=Bitmap(),
        index_version=0,
        index_details=(DETAILS_TYPE_URL, encode_details(details)),
    )
    with lance_errors("committing the MemWAL index"):
        lance.LanceDataset.commit(
            base.location.dataset_uri,
            LanceOperation.CreateIndex([index], []),
            read_version=base.version,
            max_retries=0,
            storage_options=lance_options(base.location),
        )
    newest = base.refresh()
    if newest.details is None:
        raise ConflictError("the MemWAL index was overwritten while it was made; retry")
    return newest
