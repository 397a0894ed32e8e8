"""How far compaction has come, as one version of the base table says it.

Owns the meaning of the recorded generations, and of what stands beside them. Invariants:

1. `compacted` names, per shard, the generation up to which the base version holds every row. Readers skip SSTables up to
   it, compactors start after it.
2. `commit_number` counts the compactions of a table with a primary key. It is recorded as the progress of a shard that
   does not exist (`COUNTER_SHARD`), and every compaction proposes the number after the one that it started from. Lance
   refuses a number that is not greater than the recorded one, so that of two compactions that started from the same
   state one fails whole: its own rule ("strictly greater" per shard) would let both in where one went further.
3. A base table whose features do not allow the one-commit way (`BaseTable.takes_hand_commit`) gets the rows of an
   append-only compaction in one commit, whose transaction properties name the generations, and the mark in the next.
   Between the two, `compacted` counts what the properties name, and `unmarked` tells the next compactor to finish it.

Called by: the read path, compaction, garbage collection, verify.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import OrderedDict

from memwal.base_table import BaseTable, lance_errors
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.index_details import INDEX_NAME
from memwal.types import check_shard_id

__all__ = ["COUNTER_SHARD", "PROPERTY", "commit_number", "compacted", "encode_property", "recorded", "unmarked"]

COUNTER_SHARD = str(uuid.UUID(bytes=b"memwal_compactor"))
PROPERTY = "memwal.compacted"
_KEPT_TABLES = 256

_lock = threading.Lock()
_known: OrderedDict[str, tuple[str, int, dict[str, int]]] = OrderedDict()


def recorded(base: BaseTable) -> dict[str, int]:
    """The marks of this version: per shard the last compacted generation."""
    details = base.details
    marks = {} if details is None else details.compacted
    return {shard_id: generation for shard_id, generation in marks.items() if shard_id != COUNTER_SHARD}


def commit_number(base: BaseTable) -> int:
    """How many compactions by key this version has seen."""
    return 0 if base.details is None else base.details.compacted.get(COUNTER_SHARD, 0)


def compacted(base: BaseTable) -> dict[str, int]:
    """Per shard the generation up to which this version holds every row."""
    return recorded(base) | unmarked(base)


def unmarked(base: BaseTable) -> dict[str, int]:
    """Generations whose rows are in this version although their mark is still to come; mostly none."""
    details = base.details
    if base.primary_key or details is None or base.takes_hand_commit:
        return {}
    named = _named_since_mark(base)
    return {shard: number for shard, number in named.items() if number > details.compacted.get(shard, 0)}


def encode_property(marks: dict[str, int]) -> str:
    """The transaction property that names `marks`."""
    return json.dumps(dict(sorted(marks.items())), separators=(",", ":"))


def _named_since_mark(base: BaseTable) -> dict[str, int]:
    """What transactions name since the version that recorded the last mark; each version is read once per process."""
    entry = next(item for item in base.index_entries if item.name == INDEX_NAME)
    first, key = entry.dataset_version + 1, base.location.key
    with _lock:
        seen_entry, seen_last, named = _known.get(key, ("", 0, {}))
    if seen_entry != entry.uuid or seen_last > base.version:
        seen_last, named = first - 1, {}
    named = dict(named)
    for version in range(seen_last + 1, base.version + 1):
        for shard_id, generation in _properties(base, version).items():
            named[shard_id] = max(generation, named.get(shard_id, 0))
    with _lock:
        _known[key] = (entry.uuid, base.version, named)
        _known.move_to_end(key)
        if len(_known) > _KEPT_TABLES:
            _known.popitem(last=False)
    return named


def _properties(base: BaseTable, version: int) -> dict[str, int]:
    with lance_errors(f"reading the transaction of base version {version}"):
        transaction = base.dataset.read_transaction(version)
    text = (transaction.transaction_properties or {}).get(PROPERTY) if transaction is not None else None
    if text is None:
        return {}
    try:
        marks = {check_shard_id(shard_id): int(number) for shard_id, number in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError, InvalidInputError) as error:
        raise CorruptDataError(f"the transaction of base version {version} has a malformed {PROPERTY}") from error
    return marks
