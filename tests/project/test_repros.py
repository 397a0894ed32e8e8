"""Every defect that attackers found once has a test that names it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOUND_ONCE = {
    *(f"writer-{number:02d}" for number in range(1, 20)),
    *("writer-03b", "writer-08b"),
    *(f"reads-{number:02d}" for number in range(1, 12)),
    *("reads-02b", "reads-02c", "reads-07b"),
}


def _named_by(source: str) -> Iterator[str]:
    """The names in `@pytest.mark.repro(...)` of tests in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.repro":
                    yield from (ast.literal_eval(name) for name in mark.args)


def test_every_defect_that_was_found_once_has_a_test_that_names_it() -> None:
    named = {name for module in TESTS.rglob("test_*.py") for name in _named_by(module.read_text())}
    assert named == FOUND_ONCE


def test_only_marks_on_tests_count() -> None:
    source = '@pytest.mark.repro("a", "b")\ndef test_x(): ...\n@pytest.mark.repro("c")\ndef kit(): ...\n# repro("d")\n'
    assert set(_named_by(source)) == {"a", "b"}
