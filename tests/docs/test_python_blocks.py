"""Every Python block of the documentation runs, in the order of its page."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.kit.documentation import PAGES, ROOT, blocks, blocks_of

WITH_PYTHON = [page for page in PAGES if any(kind == "python" for _, kind, _ in blocks_of(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=[page.relative_to(ROOT).as_posix() for page in WITH_PYTHON])
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    for line, kind, text in blocks_of(page):
        if kind == "python":
            names = {"__name__": "__main__"}
            place = tmp_path / str(line)
            place.mkdir()
            monkeypatch.chdir(place)
        if kind in ("python", "python continued"):
            exec(compile(text, f"{page}:{line}", "exec"), names)


def test_a_block_that_goes_on_has_one_before_it() -> None:
    for page in PAGES:
        kinds = [kind for _, kind, _ in blocks_of(page)]
        if "python continued" in kinds:
            assert "python" in kinds[: kinds.index("python continued")], page


def test_the_readme_and_the_first_pages_have_code() -> None:
    assert {"README.md", "docs/index.md", "docs/quickstart.md"} <= {page for page, _ in blocks("python")}


def test_code_of_other_libraries_compiles() -> None:
    for page, text in blocks("python theirs"):
        compile(text, page, "exec")


def test_every_page_with_spark_is_run_by_the_tests_of_spark() -> None:
    runner = (ROOT / "tests" / "spark" / "test_howto.py").read_text(encoding="utf-8")
    pages = {Path(page).name for page, _ in blocks("python spark")}
    assert pages
    assert [page for page in sorted(pages) if page not in runner] == []


def test_commands_that_need_a_checkout_name_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [line.split("#")[0].split() for _, text in blocks("bash checkout") for line in text.splitlines()]
    for command in filter(None, commands):
        if command[0] == "make":
            assert command[1] in targets, command
        else:
            assert command[:2] == ["python", "-m"], command
            assert find_spec(command[2]), command


def test_text_is_no_code() -> None:
    for page, text in blocks("text"):
        assert not re.search(r"^(?:\$ |pip |memwal |python |make |import |from \w+ import )", text, re.M), page


def test_few_blocks_do_not_run() -> None:
    for page, text in blocks("bash install"):
        assert all(line.startswith("pip install ") for line in text.splitlines()), page
    assert len(list(blocks("bash elsewhere"))) <= 5
