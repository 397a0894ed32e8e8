"""The documentation is true: links hold, the commands and files that it names exist. Its code runs in `tests/docs`."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

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
