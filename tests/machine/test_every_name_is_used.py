"""Every public name is used by a step of the machine, or is in a list with the reason why it is not.

What is public is read from the package: `lance_memwal.__all__`, and the public methods and properties of the classes there. What
is used is seen: every step is done once per variant, and every call from a step module into the package is noted.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lance_memwal as mw
from lance_memwal.read.memory_scan import MemTableScanner
from lance_memwal.table.groups import Checkpoints, Consumers, Indexes
from tests.kit.tables import Outside
from tests.machine.doing import DO, do
from tests.machine.life import MachineLife
from tests.machine.setup import CONFIGURATIONS, KINDS, Kind
from tests.machine.steps import Step, known_steps

HERE = Path(__file__).parent
WRAPPERS = ("telemetry.py",)  # a call goes through them
# What public methods return, and users call methods of.
ALSO_PUBLIC = {kind.__name__: kind for kind in (MemTableScanner, Checkpoints, Consumers, Indexes)}

WITH_BLOBS_TOO = ("checkpoint", "look_back", "shard_changes")

# What every step is done with, by the names of its arguments; several values are several variants of it.
ARGUMENTS: dict[str, list[Any]] = {
    "numbers": [[1, 2]],
    "number": [1],
    "parts": [2],
    "times": [2],
    "count": [15],
    "most": [None],
    "trim": [False, True],
    "which": [0],
    "back": [1],
    "where": [None, "v > 40"],
    "columns": [["v", "s"]],
    "limit": [3],
    "offset": [1],
    "descending": [False],
    "x": [1],
    "k": [3],
    "word": ["common"],
    "outside": [False],
    "right": [True, False],
    "gone": [False],
    "deletes": [True],
    "adds": [True, False],
    "names": ["all"],
    "drop": [False, True],
    "before": [False, True],
    "waits": [False, True],
    "how": ["put", "nowait", "async"],
    "for_repair": [False],
}


def variants(name: str, kind: Kind) -> list[Step]:
    """A step with every value of its arguments, one after the other."""
    given = {argument: ARGUMENTS[argument] for argument in known_steps(kind)[name]}
    most = max(map(len, given.values()), default=1)
    return [(name, {argument: values[at % len(values)] for argument, values in given.items()}) for at in range(most)]


# --------------------------------------------------------------------------------------------------------- what is public


def classes() -> dict[str, type]:
    named = {name: getattr(mw, name) for name in mw.__all__}
    return {name: found for name, found in named.items() if isinstance(found, type)} | ALSO_PUBLIC


def code_of(member: Any) -> CodeType | None:
    """The code of a method or property; None if it is a plain value."""
    if isinstance(member, property):
        member = member.fget
    member = inspect.unwrap(getattr(member, "__func__", member))
    return getattr(member, "__code__", None)


@cache
def public() -> dict[str, CodeType | None]:
    """Every public name, with its code if it has one: functions, classes, and what classes of the package can do."""
    found: dict[str, CodeType | None] = {name: code_of(getattr(mw, name)) for name in mw.__all__}
    found["polars.scan"] = code_of(mw.polars.scan)
    for name, kind in classes().items():
        found |= {f"{name}.{member}": code for member, code in members(kind).items()}
    return found


def members(kind: type) -> dict[str, CodeType]:
    """The public methods and properties of a class, but for those that it has of Python's own."""
    found: dict[str, CodeType] = {}
    for owner in (base for base in kind.__mro__ if base.__module__.partition(".")[0] == "lance_memwal"):
        for member, value in vars(owner).items():
            code = code_of(value)
            if not member.startswith("_") and code is not None:
                found.setdefault(member, code)
    return found


# ----------------------------------------------------------------------------------------------------------- what is used


@contextmanager
def calls_noted(codes: set[CodeType]) -> Iterator[None]:
    """Note what of the public code is called from the modules of this folder, in this thread."""
    awaited, here = set(public().values()) - codes, f"{HERE}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code not in awaited:
            return
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename.endswith(WRAPPERS):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename.startswith(here):
            codes.add(frame.f_code)
            awaited.remove(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def named_in_steps() -> set[str]:
    """The names that step modules write as `mw.name`."""
    files = [file for file in HERE.glob("*.py") if not file.name.startswith("test_")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mw"
    }


def used(elsewhere: Outside) -> set[str]:
    """The public names that steps use, seen while each is done."""
    codes: set[CodeType] = set()
    done: set[str] = set()
    for kind in (kind for kind in KINDS if kind.is_plain and (kind.has_blobs or kind is KINDS[0])):
        life = MachineLife(kind, CONFIGURATIONS[0], [0, 1], elsewhere)
        try:
            with calls_noted(codes):
                for name in (name for name in known_steps(kind) if name not in done or name in WITH_BLOBS_TOO):
                    for step in variants(name, kind):
                        do(life, ("put", {"numbers": [3, 4], "parts": 1}))
                        do(life, step)
                    done.add(name)
        finally:
            life.close()
    assert done == DO.keys() - {name for name in DO if name.startswith("_")} - {"routed"}
    methods = {name for name, code in public().items() if code in codes}
    return methods | {name.partition(".")[0] for name in methods} | named_in_steps()


def missing(seen: set[str], names: Iterable[str]) -> list[str]:
    """The names that no step uses, and that have no reason."""
    return sorted(name for name in names if name not in seen and not excepted(name))


def excepted(name: str) -> bool:
    return name in EXCEPTIONS or name.partition(".")[0] in EXCEPTIONS


def test_every_public_name_is_used_by_a_step_or_has_a_reason_not_to_be(elsewhere: Outside) -> None:
    seen = used(elsewhere)
    left = missing(seen, public())
    assert not left, f"no step of tests/machine uses {left}: add a step that judges the answer, or a reason"
    assert not (gone := sorted(EXCEPTIONS.keys() - public().keys())), (
        f"there are reasons for names that are gone: {gone}"
    )
    needless = sorted(name for name in EXCEPTIONS if name in seen and ("." in name or name not in classes()))
    assert not needless, f"steps use these, so that they need no reason: {needless}"


def test_a_method_that_nobody_thought_of_is_missing() -> None:
    def never_thought_of(_: mw.Table) -> None:
        """A method that somebody adds."""

    larger = type("Table", (mw.Table,), {"__module__": "lance_memwal.table", "never_thought_of": never_thought_of})
    names = {f"Table.{member}" for member in members(larger)}
    assert missing(set(public()), names) == ["Table.never_thought_of"]


# Public names that no step of the machine uses, each with its reason. The name of a class stands for all that it has.

_REASONS: dict[str, str] = {
    "a value that calls return; steps judge what it says where they ask": """
        Checkpoint CompactionReport ConsumerInfo FlushReport GcReport IndexInfo MaintenanceReport MemWalDetails
        Problem RepairReport ShardInfo ShardManifest ShardStatus ShardWrite ShardingField ShardingSpec SsTable StoreReport
        TableStats VerifyReport WalEntry""",
    "statistics and memory of one writer; tests/writer and tests/memtable judge them": """
        BackpressureStats InMemoryMemTableRef InMemoryMemTables MemTableStats WalStats WriteStats""",
    "about a store, not a table; tests/store/test_check_store.py has it": "check_store",
    "a module; tests/search has its queries": "query",
    "a filter with values; tests/row_filter/test_every_tier.py has every column type": "where",
    "an error that nothing of a life should raise; tests/project/test_package.py has all": """
        ChangedKeysError ClosedError ConflictError CorruptDataError MemWalError MissingLibraryError
        SearchIncompleteWarning UnavailableError UnsupportedFormatError WriterPoisonedError""",
    "the engine asks it, users only make one": """
        BTreeIndex Bucket Cursor.check_table Cursor.place Cursor.stored FtsIndex HnswIndex Identity LastWrite.remember_ms
        Manual Snapshot.check_table Snapshot.is_part_of Snapshot.stored Unsharded""",
    "the engine's own rooms call it": "ChangeFeed.needed Scan.snapshot",
    "TableWriter calls it for every shard, and steps call that": "ShardWriter.abort ShardWriter.evolve_schema",
    "commits by hand may break any table; tests/manifest has them": """
        ShardManifestStore.commit_maintenance ShardManifestStore.commit_update ShardManifestStore.is_newest
        ShardManifestStore.read_version ShardManifestStore.written_ms""",
    "of Python's files; tests/blobs/test_blob_tiers.py has them": "BlobFile.read1 BlobFile.readable BlobFile.seekable",
    "a life sets every writer by keywords; tests/config/test_writer_config.py has it": "WriterConfig",
    "a text": "__version__",
}
EXCEPTIONS: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
