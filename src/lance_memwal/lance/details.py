"""Details of the MemWAL index: how a table is sharded, what is maintained, and how far compaction has come.

Owns `MemWalDetails` ⇄ bytes. The bytes are the `index_details` of the index entry `__lance_mem_wal` in the base
table's manifest, a protobuf message of the type `DETAILS_TYPE_URL`:

    1 snapshot_ts_millis i64 · 2 num_shards u32 · 3 inline_snapshots optional bytes
    7 sharding_specs {1 spec_id u32, 2 fields {1 field_id, 2 source_ids packed i32, 3 optional transform,
      4 optional expression, 5 result_type, 6 parameters map<string, string>}}
    8 maintained_indexes strings · 9 compacted {1 {1: 16 bytes of shard id}, 2 generation u64}
    10 index_catchup {1 index name, 2 like 9} · 11 writer_config_defaults map<string, string>
    12 maintain_all_indexes optional bool (absent, false and true differ)

Invariants:

1. `decode_details(encode_details(d)) == d`.
2. `encode_details(decode_details(b)) == b` for bytes in canonical field order, whatever the order inside the maps (the
   peer's is random) and whatever fields we do not know: what was not changed is written back as it was read.
3. A shard, an index and a sharding spec occur once; everything else is `CorruptDataError`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.proto import mem_wal_pb2
from lance_memwal.lance.proto.bounded import parse_message
from lance_memwal.types import ShardingField, ShardingSpec, check_shard_id, shard_id_of

INDEX_NAME = "__lance_mem_wal"
TABLE_ID_KEY = "memwal.table_id"  # among the writer settings: a UUID that tells tables at one place apart
DETAILS_TYPE_URL = "/lance.table.MemWalIndexDetails"
MAX_DETAILS_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemWalDetails:
    """What a table's MemWAL index says.

    `maintain_all_indexes` is None where the writer recorded nothing (then only `maintained_indexes` are maintained).
    `compacted` maps a shard to its last compacted generation, `index_catchup` an index to such a map. `raw` is what was
    read; it lets `encode_details` write back the parts that are not modelled here, and `dataclasses.replace` keeps it.
    """

    num_shards: int = 0
    sharding_specs: tuple[ShardingSpec, ...] = ()
    maintained_indexes: tuple[str, ...] = ()
    maintain_all_indexes: bool | None = None
    writer_config_defaults: dict[str, str] = field(default_factory=dict)
    compacted: dict[str, int] = field(default_factory=dict)
    index_catchup: dict[str, dict[str, int]] = field(default_factory=dict)
    snapshot_ts_millis: int = 0
    inline_snapshots: bytes | None = None
    raw: bytes = field(default=b"", repr=False, compare=False)


def decode_details(data: bytes, *, path: str | None = None) -> MemWalDetails:
    """The details in `data`, fully validated, or `CorruptDataError` naming `path`."""
    message = parse_message(
        mem_wal_pb2.MemWalIndexDetails, data, what="MemWAL index details", max_bytes=MAX_DETAILS_BYTES, path=path
    )
    specs = tuple(_spec(item) for item in message.sharding_specs)
    if len({spec.spec_id for spec in specs}) != len(specs):
        raise CorruptDataError("MemWAL index details hold a sharding spec twice", path=path)
    return MemWalDetails(
        num_shards=message.num_shards,
        sharding_specs=specs,
        maintained_indexes=tuple(message.maintained_indexes),
        maintain_all_indexes=message.maintain_all_indexes if message.HasField("maintain_all_indexes") else None,
        writer_config_defaults=_pairs(message.writer_config_defaults),
        compacted=_progress(message.compacted_sstables, path),
        index_catchup=_catchup(message.index_catchup, path),
        snapshot_ts_millis=message.snapshot_ts_millis,
        inline_snapshots=message.inline_snapshots if message.HasField("inline_snapshots") else None,
        raw=bytes(data),
    )


def encode_details(details: MemWalDetails) -> bytes:
    """The bytes of `details`, with everything that was read and not changed; `InvalidInputError` if out of range."""
    message = parse_message(
        mem_wal_pb2.MemWalIndexDetails, details.raw, what="MemWAL index details", max_bytes=MAX_DETAILS_BYTES
    )
    try:
        _fill(message, details)
        data: bytes = message.SerializeToString(deterministic=True)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"MemWAL index details out of range: {error}") from None
    if len(data) > MAX_DETAILS_BYTES:
        raise InvalidInputError(f"MemWAL index details are too large: {len(data)} bytes, at most {MAX_DETAILS_BYTES}")
    return data


def _fill(message: mem_wal_pb2.MemWalIndexDetails, details: MemWalDetails) -> None:
    message.num_shards = details.num_shards
    message.snapshot_ts_millis = details.snapshot_ts_millis
    for name in ("inline_snapshots", "maintain_all_indexes"):
        if getattr(details, name) is None:
            message.ClearField(name)
        else:
            setattr(message, name, getattr(details, name))
    if tuple(_spec(item) for item in message.sharding_specs) != details.sharding_specs:
        message.ClearField("sharding_specs")
        message.sharding_specs.extend(_spec_message(spec) for spec in details.sharding_specs)
    message.ClearField("maintained_indexes")
    message.maintained_indexes.extend(details.maintained_indexes)
    if _pairs(message.writer_config_defaults) != details.writer_config_defaults:
        message.ClearField("writer_config_defaults")
        message.writer_config_defaults.extend(_pair_messages(details.writer_config_defaults))
    _put_progress(message.compacted_sstables, details.compacted)
    _put_catchup(message.index_catchup, details.index_catchup)


def _spec(item: mem_wal_pb2.ShardingSpec) -> ShardingSpec:
    return ShardingSpec(
        spec_id=item.spec_id,
        fields=tuple(
            ShardingField(
                field_id=part.field_id,
                source_ids=tuple(part.source_ids),
                transform=part.transform if part.HasField("transform") else None,
                result_type=part.result_type,
                parameters=_pairs(part.parameters),
                expression=part.expression if part.HasField("expression") else None,
            )
            for part in item.fields
        ),
    )


def _spec_message(spec: ShardingSpec) -> mem_wal_pb2.ShardingSpec:
    return mem_wal_pb2.ShardingSpec(
        spec_id=spec.spec_id,
        fields=[
            mem_wal_pb2.ShardingField(
                field_id=part.field_id,
                source_ids=part.source_ids,
                transform=part.transform,
                expression=part.expression,
                result_type=part.result_type,
                parameters=_pair_messages(part.parameters),
            )
            for part in spec.fields
        ],
    )


def _pairs(items: Any) -> dict[str, str]:
    return {item.key: item.value for item in items}


def _pair_messages(pairs: Mapping[str, str]) -> list[mem_wal_pb2.StringPair]:
    return [mem_wal_pb2.StringPair(key=key, value=value) for key, value in sorted(pairs.items())]


def _progress(items: Any, path: str | None) -> dict[str, int]:
    progress: dict[str, int] = {}
    for item in items:
        shard_id = shard_id_of(item.shard_id.value, "compaction progress", path)
        if shard_id in progress:
            raise CorruptDataError(f"compaction progress names shard {shard_id} twice", path=path)
        progress[shard_id] = item.generation
    return progress


def _catchup(items: Any, path: str | None) -> dict[str, dict[str, int]]:
    catchup: dict[str, dict[str, int]] = {}
    for item in items:
        if item.index_name in catchup:
            raise CorruptDataError("index catch-up names an index twice", path=path)
        catchup[item.index_name] = _progress(item.caught_up, path)
    return catchup


def _put_progress(items: Any, wanted: Mapping[str, int]) -> None:
    """Bring `items` to `wanted` in place, so that the order and unknown parts of what stays are kept."""
    missing = {check_shard_id(shard_id): generation for shard_id, generation in wanted.items()}
    for at in reversed(range(len(items))):
        shard_id = str(uuid.UUID(bytes=items[at].shard_id.value))
        if shard_id in missing:
            items[at].generation = missing.pop(shard_id)
        else:
            del items[at]
    for shard_id, generation in missing.items():
        item = items.add(generation=generation)
        item.shard_id.value = uuid.UUID(shard_id).bytes


def _put_catchup(items: Any, wanted: Mapping[str, Mapping[str, int]]) -> None:
    missing = dict(wanted)
    for at in reversed(range(len(items))):
        if items[at].index_name in missing:
            _put_progress(items[at].caught_up, missing.pop(items[at].index_name))
        else:
            del items[at]
    for name, progress in missing.items():
        _put_progress(items.add(index_name=name).caught_up, progress)
