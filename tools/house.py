"""Measure the size and shape of the project: `python tools/house.py` prints one line per figure.

`tests/project/test_house.py` compares the figures with ceilings that only fall. `PROFILED` figures run a put, a get and a
scan under `sys.setprofile`; all others read files.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "lance_memwal"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _files(folder: Path, pattern: str = "*.py") -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if "__pycache__" not in path.parts)


def _lines(paths: Iterable[Path]) -> int:
    return sum(_text(path).count("\n") for path in paths)


def _header_lines(path: Path) -> int:
    """Lines before the first node that is not a docstring, an import or `__all__`."""
    for node in _tree(path).body:
        is_header = isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )
        is_all = isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets)
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not (is_header or is_all or is_typing):
            return node.lineno - 1
    return _text(path).count("\n")


def _nodes(paths: Iterable[Path], *kinds: type[ast.AST]) -> list[Any]:
    return [node for path in paths for node in ast.walk(_tree(path)) if isinstance(node, kinds)]


def _parameters(function: ast.FunctionDef) -> int:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _imports() -> dict[str, set[str]]:
    """For each module of the package, the modules that import it."""
    modules = {_module(path) for path in _files(PACKAGE)}
    importers: dict[str, set[str]] = defaultdict(set)
    for path in _files(PACKAGE):
        importer = _module(path)
        for node in _nodes([path], ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                joined = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [name if name in modules else node.module or "" for name in joined]
            for target in targets:
                if target in modules and target != importer:
                    importers[target].add(importer)
    return importers


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else ""


def _past_the_door() -> int:
    """Modules of a room that another room imports without going through the room's `__init__`."""
    inner = [module for module in list(_imports()) if module.count(".") >= 2]
    return sum(any(_room(importer) != _room(module) for importer in _imports()[module]) for module in inner)


def _prose_lines() -> tuple[int, int]:
    """Lines of docstrings, and lines that are only a comment."""
    docstrings = comments = 0
    for path in _files(SOURCE):
        for node in _nodes([path], ast.Module, ast.ClassDef, *_FUNCTIONS):
            if ast.get_docstring(node, clean=False) is not None:
                docstrings += node.body[0].end_lineno - node.body[0].lineno + 1
        tokens = tokenize.generate_tokens(io.StringIO(_text(path)).readline)
        comments += sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)
    return docstrings, comments


def _repeated_helpers() -> int:
    """Names of functions at the top of test modules that three or more modules define."""
    names: Counter[str] = Counter()
    for path in _files(ROOT / "tests"):
        defined = {node.name for node in _tree(path).body if isinstance(node, _FUNCTIONS)}
        names.update(name for name in defined if not name.startswith("test_"))
    return sum(count >= 3 for count in names.values())


def _matches(pattern: str, paths: Iterable[Path]) -> int:
    return sum(len(re.findall(pattern, _text(path), re.MULTILINE)) for path in paths)


def dialect(*paths: str) -> float:
    """Hits of `tools/prose-check` per 1,000 lines."""
    command = [sys.executable, str(ROOT / "tools" / "prose-check"), *paths]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603
    total = next(line for line in output.splitlines() if line.startswith("total"))
    return float(total.split()[-1].replace(",", ""))


def _profiled(call: Callable[[], object]) -> tuple[int, int]:
    """Files of the package that a call enters, and Python calls in them."""
    files: set[str] = set()
    calls = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            files.add(frame.f_code.co_filename)
            calls += 1

    call()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(files), calls


def _path_figures() -> dict[str, float]:
    """Files and calls of a durable put, a get from memory and a filtered scan, each called for the second time."""
    import lance_memwal as mw

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        table = mw.create_table(f"{folder}/t", {"id": [0], "v": ["base"]}, primary_key="id")
        with table.writer(compaction=None) as writer:
            cases: dict[str, Callable[[], object]] = {
                "put": lambda: writer.put({"id": [1], "v": ["x"]}),
                "get": lambda: table.get(1),
                "scan": lambda: table.scan(filter="id >= 0").to_table(),
            }
            for name, call in cases.items():
                found[f"files of a {name}"], found[f"calls of a {name}"] = _profiled(call)
    return found


def figures(*, profiled: bool = True) -> dict[str, float]:
    """Every figure by its name."""
    source, tests = _files(SOURCE), _files(ROOT / "tests")
    pages = _files(ROOT / "docs", "*.md")
    functions = _nodes(source, *_FUNCTIONS)
    lengths = sorted(node.end_lineno - node.lineno + 1 for node in functions)
    classes = _nodes(source, ast.ClassDef)
    characters = sum(len(_text(path)) for path in source)
    docstrings, comments = _prose_lines()
    stems = Counter(path.stem for path in _files(PACKAGE) if path.stem not in ("__init__", "__main__"))
    sizes = [_lines([path]) for path in _files(PACKAGE)]
    counted = {
        "lines of source": _lines(source),
        "files of the package": len(_files(PACKAGE)),
        "files of source": len(source),
        "median lines of a module": statistics.median(sizes),
        "characters of source": characters,
        "characters per line": round(characters / _lines(source), 1),
        "percent docstrings": round(100 * docstrings / _lines(source), 1),
        "percent comment lines": round(100 * comments / _lines(source), 1),
        "lines before the first statement": sum(map(_header_lines, _files(PACKAGE))),
        "modules imported past their door": _past_the_door(),
        "modules with one importer": sum(len(importers) == 1 for importers in _imports().values()),
        "file names that occur twice": sum(count > 1 for count in stems.values()),
        "classes over 15 methods": sum(
            sum(isinstance(item, _FUNCTIONS) for item in node.body) > 15 for node in classes
        ),
        "functions over 8 parameters": sum(_parameters(node) > 8 for node in functions),
        "function length p99": lengths[int(len(lengths) * 0.99)],
        "function length max": lengths[-1],
        "constants of tries": _matches(r"_TRIES =", source),
        "constants of back-off": _matches(r"= (?:\w+\.)?BackOff\(", source),
        "places that declare txn": _matches(r"\btxn:", source),
        "lines of Java": _lines(_files(SOURCE, "*.java")),
        "lines of tests": _lines(tests),
        "files of tests": len(tests),
        "lines of the test kit": _lines(_files(ROOT / "tests" / "kit")),
        "test helpers defined three times": _repeated_helpers(),
        "pages of docs": len(pages),
        "lines of docs": _lines(pages),
        "rows of 'Where is it?'": _matches(r"^\| .* \| `(?:src|tests|tools|benchmarks)/", [ROOT / "CONTRIBUTING.md"]),
        "dialect in source": dialect("src"),
        "dialect in docs": dialect("docs", "README.md", "CONTRIBUTING.md"),
        "dialect in tests": dialect("tests"),
    }
    return counted | (_path_figures() if profiled else {})


def main() -> None:
    """Print the figures."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--no-profile", action="store_true", help="read files only")
    for name, value in figures(profiled=not arguments.parse_args().no_profile).items():
        print(f"{name:36}{value:>12,g}" if value < 1e6 else f"{name:36}{value:>12,.0f}")


if __name__ == "__main__":
    main()
