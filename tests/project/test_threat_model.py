"""The threat model names what enforces each answer and which tests would notice; dependencies are pinned."""

from __future__ import annotations

import ast
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "lance_memwal"
EXECUTES = {"eval", "exec", "loads", "load"}
BROWSER = {"greenlet", "playwright", "pyee"}  # of `make test-ui`, which installs them when it is asked for
READERS = {"pickle", "marshal", "dill", "cloudpickle", "shelve", "yaml"}


def rows() -> list[list[str]]:
    """The cells of the table of threats."""
    text = (ROOT / "THREAT-MODEL.md").read_text()
    lines = text.partition("| threat |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row[0][:40]))
def test_every_threat_names_code_and_tests_that_exist(row: list[str]) -> None:
    _, _, enforced, tests = row
    places, named = re.findall(r"`([^`]+)`", enforced), re.findall(r"`([^`]+)`", tests)
    assert places
    assert named
    for place in places:
        assert (PACKAGE / place).exists() or (ROOT / place).exists(), place
    for name in named:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert file.startswith("tests/")
        assert function in found if function else any(item.startswith("test_") for item in found), name


def test_there_are_threats() -> None:
    assert len(rows()) >= 19


def test_nothing_that_was_read_is_executed() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in {"eval", "exec"}), (file, node.lineno)
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                assert (called.value.id not in READERS) or called.attr not in EXECUTES, (file, node.lineno)


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def needed(name: str, extras: frozenset[str], seen: set[str]) -> None:
    """What an installed distribution needs here, and what that needs."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            key = canonicalize_name(requirement.name)
            if key not in seen or requirement.extras:
                seen.add(key)
                needed(requirement.name, frozenset(requirement.extras), seen)


def test_everything_that_is_needed_has_one_exact_version_and_it_is_the_one_that_is_tested() -> None:
    known, seen = pinned(), set[str]()
    needed("lance-memwal", frozenset({"dev"}), seen)
    seen.discard("lance-memwal")
    assert len(seen) > 50
    assert sorted(seen - known.keys()) == []
    other = {name: metadata.version(name) for name in seen if metadata.version(name) != known[name]}
    assert other == {}


def test_everything_that_is_installed_is_pinned_and_every_pin_is_installed() -> None:
    installed = {canonicalize_name(found.metadata["Name"]) for found in metadata.distributions()}
    assert sorted(installed - pinned().keys() - {"lance-memwal", "pip"}) == []
    assert sorted(pinned().keys() - installed - BROWSER) == []


def test_the_audit_asks_for_every_pin_and_fails_where_there_is_no_answer() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "audit"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    asked = told.stdout.splitlines()[-1].split()
    assert asked[0].endswith("/pip-audit")
    assert {"--strict", "constraints.txt"} <= set(asked)
    assert re.findall(r"\| (20\d\d-\d\d-\d\d) \|", (ROOT / "THREAT-MODEL.md").read_text()), "say when it was run last"
