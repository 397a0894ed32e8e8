"""The one place where our paths are spelled, and parsed back.

Owns every name below `_mem_wal`, and our own names elsewhere. Names of Lance's own files are in `lance.manifest`.
Invariants:

1. `parse_x(x_path(v)) == v`, and a parser returns None for anything else (a staging file, a stray name).
2. Shard ids are lower-case dashed UUIDs and SSTable directories match `[0-9a-f]{8}_gen_[0-9]+`, so that no value from
   storage can point outside its shard.
3. WAL positions and manifest versions are 64-bit and bit-reversed, as the public layout has them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.types import check_shard_id

MEM_WAL_DIR = "_mem_wal"
TABLE_SUFFIX = ".lance"
NAMESPACE_MARK = "memwal_namespace.json"
STAGE_DIR = "memwal_stage"
STORE_CHECK = "memwal_store_check.txt"  # created again by each process that commits
_STORE_CHECK_DIR = "memwal_store_check"
CONSUMERS_DIR = "memwal_consumers"
CHECKPOINTS_DIR = "memwal_checkpoints"
HINT_NAME = "version_hint.json"
LAST_RECORD = (1 << 63) - 1  # the highest number that a record can have
_LONGEST_NAME = 255  # bytes, in any file system
_MAX = (1 << 64) - 1
_NUMBER = re.compile(r"[01]{64}")
_WAREHOUSE_NAME = re.compile(r"[^\W_][\w-]{0,199}")
_OWNER = re.compile(r"memwal_owner_([0-9]{1,20})\.json")
_RECORD = re.compile(r"([1-9][0-9]{0,18})\.json")
_RECORD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ROLL_UP = re.compile(r"[1-9][0-9]{0,19}-[1-9][0-9]{0,19}-[0-9a-f]{16}\.bin")
_SSTABLE = re.compile(r"([0-9a-f]{8})_gen_([0-9]{1,20})")


def number_name(number: int) -> str:
    """The 64 binary digits of `number`, least significant first."""
    if not 0 <= number <= _MAX:
        raise InvalidInputError(f"number out of the 64-bit range: {number}")
    return f"{number:064b}"[::-1]


def parse_number_name(name: str) -> int | None:
    """The number behind 64 reversed binary digits, or None."""
    return int(name[::-1], 2) if _NUMBER.fullmatch(name) else None


def _parse_with_suffix(name: str, suffix: str) -> int | None:
    return parse_number_name(name[: -len(suffix)]) if name.endswith(suffix) else None


def shard_dir(shard_id: str) -> str:
    """Directory of one shard."""
    return f"{MEM_WAL_DIR}/{check_shard_id(shard_id)}"


def wal_dir(shard_id: str) -> str:
    """Directory of a shard's WAL entries."""
    return f"{shard_dir(shard_id)}/wal"


def entry_path_below(directory: str, position: int) -> str:
    """Path of the WAL entry at `position`, where `directory` is the shard's `wal_dir` (the hot path checks it once)."""
    return f"{directory}/{number_name(position)}.arrow"


def wal_entry_path(shard_id: str, position: int) -> str:
    """Path of the WAL entry at `position`."""
    return entry_path_below(wal_dir(shard_id), position)


def parse_entry_name(name: str) -> int | None:
    """The position of a WAL entry's file name, or None."""
    return _parse_with_suffix(name, ".arrow")


def manifest_dir(shard_id: str) -> str:
    """Directory of a shard's manifest versions."""
    return f"{shard_dir(shard_id)}/manifest"


def manifest_path(shard_id: str, version: int) -> str:
    """Path of one manifest version."""
    return f"{manifest_dir(shard_id)}/{number_name(version)}.binpb"


def manifest_hint_path(shard_id: str) -> str:
    """Path of the version hint, the one object that is overwritten."""
    return f"{manifest_dir(shard_id)}/{HINT_NAME}"


def parse_manifest_name(name: str) -> int | None:
    """The version of a manifest's file name, or None."""
    return _parse_with_suffix(name, ".binpb")


def sstable_name(token: str, generation: int) -> str:
    """Directory name of one flush attempt: 8 random hexadecimal digits and the generation."""
    return check_sstable_name(f"{token}_gen_{generation}")


def parse_sstable_name(name: str) -> int | None:
    """The generation of an SSTable directory's name, or None."""
    match = _SSTABLE.fullmatch(name)
    return int(match.group(2)) if match else None


def check_sstable_name(name: str) -> str:
    """Return `name` if it is a well-formed SSTable directory name, else raise."""
    if parse_sstable_name(name) is None:
        raise CorruptDataError(f"SSTable path is malformed: {name[:80]!r}")
    return name


def sstable_dir(shard_id: str, name: str) -> str:
    """Directory of one SSTable."""
    return f"{shard_dir(shard_id)}/{check_sstable_name(name)}"


def blob_path(shard_id: str, name: str, data_file: str, blob_id: int) -> str:
    """A file of blobs beside a data file of an SSTable; its name is the bits of its number, lowest first."""
    stem = sstable_data_path(shard_id, name, data_file).removesuffix(".lance")
    return f"{stem}/{f'{blob_id:032b}'[::-1]}.blob"


def sstable_data_path(shard_id: str, name: str, data_file: str) -> str:
    """Path of a data file of an SSTable's dataset, whose manifest names it."""
    return f"{sstable_dir(shard_id, name)}/data/{check_file_name(data_file, 'data file')}"


def check_file_name(name: str, what: str) -> str:
    """Return `name` if a file in a directory may be called so, wherever it lies, else raise; `what` kind of file it is."""
    if not 0 < len(name.encode()) <= _LONGEST_NAME or name.startswith(".") or "/" in name or "\0" in name:
        raise CorruptDataError(f"{what} name is malformed: {name[:80]!r}")
    return name


def pk_index_dir(shard_id: str, name: str) -> str:
    """Directory of an SSTable's primary-key sidecar."""
    return f"{sstable_dir(shard_id, name)}/_pk_index"


def bloom_path(shard_id: str, name: str) -> str:
    """Path of an SSTable's bloom filter."""
    return f"{sstable_dir(shard_id, name)}/bloom_filter.bin"


def deletes_dir(shard_id: str) -> str:
    """Directory of the deletes that a shard remembers after they were compacted."""
    return f"{shard_dir(shard_id)}/memwal_deletes"


def deletes_path(shard_id: str, generation: int, token: str) -> str:
    """Path of the deletes of one compaction; `generation` is the last one that it folds, `token` hexadecimal digits."""
    if re.fullmatch(r"[0-9a-f]{1,32}", token) is None:
        raise InvalidInputError("remembered deletes are named by hexadecimal digits")
    return f"{deletes_dir(shard_id)}/{generation:020d}-{token}.arrow"


def roll_up_dir(shard_id: str) -> str:
    """Directory of copies of generations that development versions wrote: readers ignore them, and collection removes them."""
    return f"{shard_dir(shard_id)}/memwal_rollups"


def is_roll_up_name(name: str) -> bool:
    """Whether a file in `roll_up_dir` is a roll-up."""
    return _ROLL_UP.fullmatch(name) is not None


def quarantine_path(shard_id: str, position: int, token: str) -> str:
    """Where repair moves the bytes of a torn entry."""
    return f"{shard_dir(shard_id)}/memwal_quarantine/{position}-{token}"


def loss_path(shard_id: str, position: int, token: str) -> str:
    """Where repair writes down what was given up with an entry; its bytes are beside it."""
    return f"{quarantine_path(shard_id, position, token)}.json"


def parse_owner_name(name: str) -> int | None:
    """The epoch of an owner record, or None. Earlier versions wrote these records for shared writers."""
    match = _OWNER.fullmatch(name)
    return int(match.group(1)) if match else None


def floor_dir(shard_id: str) -> str:
    """Directory of the numbered records that say how far collection went in the log of a shard."""
    return f"{shard_dir(shard_id)}/memwal_floor"


def check_record_name(name: str) -> str:
    """Return `name` if a consumer or a checkpoint may be called so, else raise."""
    if not isinstance(name, str) or not is_record_name(name):
        raise InvalidInputError(
            "a name is 1 to 100 letters, digits, '.', '_' or '-' and begins with a letter or a digit, "
            f"not {repr(name)[:120]}"
        )
    return name


def is_record_name(name: str) -> bool:
    """Whether a consumer or a checkpoint may be called so."""
    return _RECORD_NAME.fullmatch(name) is not None


def record_dir(directory: str, name: str) -> str:
    """Directory of the numbered records of one name; `directory` is `CONSUMERS_DIR` or `CHECKPOINTS_DIR`."""
    return f"{directory}/{check_record_name(name)}"


def record_path(directory: str, number: int) -> str:
    """Path of one numbered record in its directory."""
    if not 1 <= number <= LAST_RECORD:
        raise InvalidInputError(f"a record is numbered from 1 on, not {number}")
    return f"{directory}/{number}.json"


def parse_record_name(name: str) -> int | None:
    """The number of a record's file name, or None."""
    match = _RECORD.fullmatch(name)
    return int(match.group(1)) if match and int(match.group(1)) <= LAST_RECORD else None


def store_check_dir(token: str) -> str:
    """Directory of the objects of one run of `check_store`; `token` is hexadecimal digits."""
    return f"{_STORE_CHECK_DIR}/{token}"


def stage_path(job: str, token: str) -> str:
    """Path of rows that a job staged before their commit; `job` and `token` are hexadecimal digits or dashes."""
    if re.fullmatch(r"[0-9a-f-]{1,64}", job) is None or re.fullmatch(r"[0-9a-f-]{1,64}", token) is None:
        raise InvalidInputError("staged rows are named by hexadecimal digits")
    return f"{STAGE_DIR}/{job}/{token}.arrow"


# ------------------------------------------------------------------------------------------------------------ warehouses


def _checked(name: str) -> str:
    if _WAREHOUSE_NAME.fullmatch(name) is None:
        raise InvalidInputError(
            f"a table or a namespace is called by letters, digits, '_' and '-', not {repr(name)[:120]}"
        )
    return name


def warehouse_dir(namespace: Sequence[str]) -> str:
    """Directory of a namespace below its warehouse; the warehouse itself for none."""
    return "/".join(_checked(part) for part in namespace)


def warehouse_table(namespace: Sequence[str], name: str) -> str:
    """Directory of a table below its warehouse."""
    return "/".join([*(_checked(part) for part in namespace), _checked(name) + TABLE_SUFFIX])


def parse_table_name(name: str) -> str | None:
    """The table of a directory in a warehouse, or None."""
    table = name.removesuffix(TABLE_SUFFIX)
    return table if table != name and _WAREHOUSE_NAME.fullmatch(table) else None


def parse_namespace_name(name: str) -> str | None:
    """The namespace of a directory in a warehouse, or None."""
    return name if _WAREHOUSE_NAME.fullmatch(name) else None


def namespace_path(namespace: Sequence[str]) -> str:
    """The object that says that a namespace exists, also without tables."""
    return f"{warehouse_dir(namespace)}/{NAMESPACE_MARK}"
