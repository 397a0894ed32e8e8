"""The fenced blocks of the README and of the pages below docs/, as `tools/check_docs.py` reads them."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_docs = tool("check_docs")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> Iterator[tuple[int, str, str]]:
    yield from check_docs.blocks(page.read_text(encoding="utf-8"))


def blocks(kind: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for _, found, text in blocks_of(page):
            if found == kind:
                yield page.relative_to(ROOT).as_posix(), text
