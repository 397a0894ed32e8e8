"""Documents of the project: documentation, threat model, defects that attackers found once, and the demo."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lance_memwal
from tests.kit.documentation import check_docs

ROOT = Path(__file__).resolve().parents[2]


def test_links_hold_and_every_page_is_reachable() -> None:
    assert check_docs.check(ROOT) == []


def test_a_broken_link_a_lost_page_and_a_nameless_block_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Index\n[a](a.md) [b](gone.md) [c](a.md#nowhere) [d](a.md#the-end)\n")
    (tmp_path / "docs" / "a.md").write_text("# A\n```\nx\n```\n## The `end`!\n`[not](a-link)`\n")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n")
    assert check_docs.check(tmp_path) == [
        f"docs/a.md:2: fenced block of kind ''; known: {', '.join(check_docs.KINDS)}",
        "docs/index.md:2: link to gone.md: no such file",
        "docs/index.md:2: link to a.md#nowhere: no such heading",
        "docs/lost.md:1: not reachable from docs/index.md",
    ]


def test_links_to_our_own_repository_are_checked_as_files(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Index\n")
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://a.b/c"\n')
    (tmp_path / "README.md").write_text(
        "[x](https://a.b/c/blob/main/docs/index.md#index) ![y](https://a.b/c/raw/main/docs/gone.png) [z](https://a.b/d/blob/main/no)\n"
    )
    assert check_docs.check(tmp_path) == ["README.md:1: link to https://a.b/c/raw/main/docs/gone.png: no such file"]


def test_the_readme_can_be_read_on_a_package_index() -> None:
    text = check_docs.prose((ROOT / "README.md").read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    assert any(target.endswith(".png") for target in targets)
    assert not re.search(r"<(?!!--)[a-z]", text), "index pages show no HTML"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_makefile_has_the_promised_targets() -> None:
    assert {"setup", "demo", "test", "bench", "prove", "lint", "docs", "help"} <= make_targets()


def test_every_make_command_in_the_documentation_exists() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in check_docs.pages(ROOT))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= make_targets()


def test_ci_runs_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "\nmake test\n" in script
    assert "\nmake demo" in script
    assert "set -euo pipefail" in script
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_every_test_folder_that_a_guarantee_names_has_tests() -> None:
    folders = set(re.findall(r"`(tests/[a-z_/]+)`", (ROOT / "docs" / "guarantees.md").read_text()))
    assert folders
    for folder in sorted(folders):
        assert any((ROOT / folder).rglob("test_*.py")), folder


def test_every_guarantee_has_a_number_of_its_own() -> None:
    numbers = re.findall(r"^\| (G\d+) \|", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)
    assert len(numbers) > 20
    assert sorted(set(numbers)) == sorted(numbers)


def test_the_version_is_the_same_everywhere() -> None:
    assert metadata.version("lance-memwal") == lance_memwal.__version__
    first = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first.group(1) in {"Unreleased", lance_memwal.__version__}


def test_constraints_are_exact_and_name_nothing_but_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.!+]+", line) for line in lines)
    assert len({line.split("==")[0].lower() for line in lines}) == len(lines)


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[<>=~! ]", requirement)[0].lower() for group in groups for requirement in group}
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert names - {"lance-memwal"} <= pinned


def test_every_source_file_that_a_page_names_exists() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in check_docs.pages(ROOT))
    named = set(re.findall(r"`((?:src|tests|tools|benchmarks|rfcs|examples)/[\w./-]+\.(?:py|md))`", text))
    assert len(named) >= 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


# The threat model names what enforces each answer and which tests would notice; dependencies are pinned.

PACKAGE = ROOT / "src" / "lance_memwal"
EXECUTES = {"eval", "exec", "loads", "load"}
BROWSER = {"greenlet", "playwright", "pyee"}  # of `make test-ui`, which installs them when it is asked for
READERS = {"pickle", "marshal", "dill", "cloudpickle", "shelve", "yaml"}


def rows() -> list[list[str]]:
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


# Every defect that attackers found once has a test that names it.

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


DEMO = str(Path(__file__).resolve().parents[2] / "examples" / "demo.py")


def test_demo_ends_with_summary_and_empty_stderr(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", DEMO, "--no-spark"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    assert "Writer fenced" in done.stdout
    assert "\nSummary\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_demo_without_spark_skips_its_chapter(monkeypatch: pytest.MonkeyPatch) -> None:
    why_without_spark = run_path(DEMO)["why_without_spark"]
    assert why_without_spark([]) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'lance-memwal[spark]'" in str(why_without_spark([]))
