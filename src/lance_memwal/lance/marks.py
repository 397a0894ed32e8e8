"""How far compaction has come, as one version of the base table says it.

Owns the meaning of the recorded generations, and of what stands beside them. Invariants:

1. `compacted` names, per shard, the generation up to which the base version holds every row. Readers skip SSTables up to
   it, compactors start after it.
2. `commit_number` counts the compactions of a table with a primary key. It is recorded as the progress of a shard that
   does not exist (`COUNTER_SHARD`), and every compaction proposes the number after the one that it started from. Lance
   refuses a number that is not greater than the recorded one, so that of two compactions that started from the same
   state one fails whole: its own rule ("strictly greater" per shard) would let both in where one went further.
3. A base table whose features do not allow the one-commit way (`BaseTable.takes_hand_commit`) gets the rows of an
   append-only compaction in one commit, which also names the generations in the metadata of the schema
   (`METADATA_KEY`), and the mark in the next. Between the two, `compacted` counts what is named, and `unmarked` tells
   the next compactor to finish it. The name is in the manifest that has the rows: whatever Lance does to the table
   afterwards (other commits, rewritten files, clean-up, `restore`) keeps or drops both together. It is taken away
   after the mark; what the marks have reached counts no more.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.base import RESERVED, BaseTable
from lance_memwal.types import check_shard_id

__all__ = [
    "COUNTER_SHARD",
    "METADATA_KEY",
    "commit_number",
    "compacted",
    "counted",
    "encode_marks",
    "has_names",
    "recorded",
    "unmarked",
]

COUNTER_SHARD = str(uuid.UUID(bytes=b"memwal_compactor"))
METADATA_KEY = f"{RESERVED.decode()}compacted"


def recorded(base: BaseTable) -> dict[str, int]:
    """The marks of this version: per shard the last compacted generation."""
    details = base.details
    marks = {} if details is None else details.compacted
    return {shard_id: generation for shard_id, generation in marks.items() if shard_id != COUNTER_SHARD}


def commit_number(base: BaseTable) -> int:
    """How many compactions by key this version has seen."""
    return 0 if base.details is None else base.details.compacted.get(COUNTER_SHARD, 0)


def counted(base: BaseTable, marks: Mapping[str, int]) -> dict[str, int]:
    """`marks` with the number of the compaction that records them on `base`."""
    return {**marks, COUNTER_SHARD: commit_number(base) + 1}


def compacted(base: BaseTable) -> dict[str, int]:
    """Per shard the generation up to which this version holds every row."""
    return recorded(base) | unmarked(base)


def unmarked(base: BaseTable) -> dict[str, int]:
    """Generations whose rows are in this version although their mark is still to come; mostly none."""
    text = base.manifest.schema_metadata().get(METADATA_KEY)
    if text is None or base.details is None:
        return {}
    marks = recorded(base)
    return {shard: number for shard, number in _decode_marks(text).items() if number > marks.get(shard, 0)}


def has_names(base: BaseTable) -> bool:
    """Whether this version names generations in its schema metadata, recorded ones or not."""
    return METADATA_KEY in base.manifest.schema_metadata()


def encode_marks(marks: Mapping[str, int]) -> bytes:
    """The value of `METADATA_KEY` that names `marks`."""
    return json.dumps(dict(sorted(marks.items())), separators=(",", ":")).encode()


def _decode_marks(text: bytes) -> dict[str, int]:
    try:
        return {check_shard_id(shard_id): int(number) for shard_id, number in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, InvalidInputError) as error:
        raise CorruptDataError(f"the schema metadata {METADATA_KEY} of the base table is malformed") from error
