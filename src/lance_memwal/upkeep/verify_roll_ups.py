"""Verify: do roll-ups say what the generations say that they are copies of?

Owns `damaged_roll_ups`, and `inspect_roll_ups`, which checks

V-14 Every roll-up can be read, and of each generation that is listed it has the filter, manifest, keys and rows that the
     generation has.

It holds neither collection nor repair back: readers do without a roll-up that is damaged. One of another version is not damaged,
and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lance_memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.rows.key_encoding import hash_is_exact, key_hashes
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.roll_up import RollUp, listed_roll_ups
from lance_memwal.sstable.rolling import copy_of
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.reports import Problem

__all__ = ["damaged_roll_ups", "inspect_roll_ups", "without_directory"]

_DAMAGED = "run repair, which deletes it: readers open the files that it is a copy of, until it is made again"
_NO_DIRECTORY = "move it away: readers open the files that roll-ups are copies of, until they are made again"
_DIFFERS = (
    "the roll-up is as it was written, by its checksums, and the files of the generation have none: they may be damaged; "
    "compare both with a copy of the table before either goes"
)


def inspect_roll_ups(base: BaseTable, manifests: Iterable[ShardManifest]) -> list[Problem]:
    """What is wrong with the roll-ups of the shards of these manifests, their newest ones."""
    problems = []
    for manifest in manifests:
        try:
            damaged = damaged_roll_ups(base.location, manifest.shard_id)
        except CorruptDataError as error:
            problems.append(without_directory(manifest.shard_id, error))
            continue
        problems += [Problem(path, what, _DAMAGED, "V-14", manifest.shard_id) for path, what in damaged.items()]
        for path in sorted(set(listed_roll_ups(base.location, manifest.shard_id)) - set(damaged)):
            what = next(_differences_of(base, manifest, path), None)
            if what is not None:
                problems.append(Problem(path, what, _DIFFERS, "V-14", manifest.shard_id))
    return problems


def without_directory(shard_id: str, error: CorruptDataError) -> Problem:
    """What to say of roll-ups that cannot be listed: their directory is none."""
    return Problem(error.path or paths.roll_up_dir(shard_id), str(error), _NO_DIRECTORY, "V-14", shard_id)


def damaged_roll_ups(location: Location, shard_id: str) -> dict[str, str]:
    """The roll-ups of a shard whose own bytes are damaged, and what is wrong with each; `CorruptDataError` if they cannot be
    listed."""
    found = {path: _damage_of(location, path) for path in sorted(listed_roll_ups(location, shard_id))}
    return {path: what for path, what in found.items() if what is not None}


def _damage_of(location: Location, path: str) -> str | None:
    try:
        return None if RollUp(location, path).is_whole() else "the roll-up is damaged"
    except (ObjectNotFoundError, UnsupportedFormatError):  # collected meanwhile, or of a newer version
        return None
    except CorruptDataError as error:
        return f"the roll-up cannot be read: {error}"


def _differences_of(base: BaseTable, manifest: ShardManifest, path: str) -> Iterator[str]:
    """What a roll-up that is whole has otherwise than the generations that are listed."""
    try:
        roll_up = RollUp(base.location, path)
    except (ObjectNotFoundError, UnsupportedFormatError):
        return
    for number, sstable in enumerate(roll_up.sstables):
        if sstable in manifest.sstables:
            reader = SsTableReader(base.location, manifest.shard_id, sstable)
            try:
                yield from _differences(roll_up, number, reader, base.columns)
            except (
                MemWalError
            ):  # collected meanwhile, or damaged, which V-8 says: then there is nothing to compare with
                continue


def _differences(roll_up: RollUp, number: int, reader: SsTableReader, schema: TableSchema) -> Iterator[str]:
    where = f"generation {reader.sstable.generation}"
    wanted, facts = copy_of(reader, schema), roll_up.facts_of(number)
    if facts is None:  # collected meanwhile
        return
    if facts.manifest != wanted.manifest:
        yield f"the roll-up has another manifest than {where}"
    if (facts.keys is None) != (wanted.keys is None) or (wanted.columns is None) != (facts.columns is None):
        yield f"the roll-up has more or less of {where} than it should"
        return
    if facts.keys is not None and wanted.keys is not None and not facts.keys.equals(wanted.keys):
        yield f"the roll-up has other keys than {where}"
    rows = roll_up.rows_of(number)
    if wanted.rows is not None and (rows is None or not _are_same(rows, wanted.rows)):
        yield f"the roll-up has other rows than {where}"
    if wanted.rows is not None and _denies(roll_up, number, wanted.rows.num_rows, reader, schema):
        yield f"the roll-up denies a key of {where}"


def _are_same(rows: pa.Table, others: pa.Table) -> bool:
    """Whether both have the same rows. Arrow's NaN is not equal to itself, wherever it is; in words it is."""
    return rows.equals(others) or (
        rows.schema.equals(others.schema) and repr(rows.to_pylist()) == repr(others.to_pylist())
    )


def _denies(roll_up: RollUp, number: int, rows: int, reader: SsTableReader, schema: TableSchema) -> bool:
    """Whether its filter denies a key of the generation."""
    batches = [batch for batch, _ in reader.batches(schema, schema.primary_key, None, rows)]
    for batch in batches:
        columns = [one_array(batch.column(name)) for name in schema.primary_key]
        if hash_is_exact([column.type for column in columns]):
            found = roll_up.might_contain(key_hashes(columns))
            if found is None or not found[number].all():
                return True
    return False
