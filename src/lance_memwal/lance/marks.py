"""How far compaction has come, as one version of the base table says it.

Owns the meaning of the recorded generations, and of what stands beside them. Invariants:

1. `compacted` names, per shard, the generation up to which the base version holds every row. Readers skip SSTables up to
   it, compactors start after it.
2. `commit_number` counts the compactions of a table with a primary key. It is recorded as the progress of a shard that
   does not exist (`COUNTER_SHARD`), and every compaction proposes the number after the one that it started from. Lance
   refuses a number that is not greater than the recorded one, so that of two compactions that started from the same
   state one fails whole: its own rule ("strictly greater" per shard) would let both in where one went further.
3. An earlier version compacted some append-only tables in two commits. The first one held the rows and named the generations
   in the metadata of the schema (`METADATA_KEY`), the second one recorded them. `compacted` counts generations that are
   only named, so that a table is read right if that version stopped between its commits.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.base import RESERVED, BaseTable
from lance_memwal.types import check_shard_id

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
    marks = recorded(base)
    text = base.manifest.schema_metadata().get(METADATA_KEY)
    if text is None or base.details is None:
        return marks
    named = _decode_marks(text)
    return marks | {shard: number for shard, number in named.items() if number > marks.get(shard, 0)}


def _decode_marks(text: bytes) -> dict[str, int]:
    try:
        return {check_shard_id(shard_id): int(number) for shard_id, number in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, InvalidInputError) as error:
        raise CorruptDataError(f"the schema metadata {METADATA_KEY} of the base table is malformed") from error
