"""Every Python block of the documentation runs, in the order of its page; so do the blocks that need a shell or a store.

Blocks with Spark run in `tests/spark`.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cli_process import warm_command
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


# The blocks of the documentation that need more than Python: a shell, an S3 service, an Azure service.
#
# Plain Python blocks run in `test_python_blocks.py`, those with Spark in `tests/spark`.

REPOSITORY = Path(__file__).resolve().parents[2]
SHELL = list(blocks("bash"))


@pytest.fixture(scope="module")
def memwal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_command(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


@pytest.mark.xdist_group("shell blocks")
@pytest.mark.parametrize(("page", "block"), SHELL, ids=[page for page, _ in SHELL])
def test_every_shell_block_runs(page: str, block: str, tmp_path: Path, memwal: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path, env={**os.environ, "PATH": f"{memwal}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def run_on_store(language: str, shown: str, table: tuple[str, Mapping[str, str]]) -> None:
    """Run the blocks with the place and the options of a service that runs here, and otherwise as they stand."""
    uri, options = table
    found = list(blocks(language))
    assert found
    for page, block in found:
        assert shown in block
        text, replaced = re.subn(r"^options = .*$", lambda _: f"options = {dict(options)!r}", block, flags=re.M)
        assert replaced == 1
        exec(compile(text.replace(shown, uri), page, "exec"), {"__name__": "__main__"})


@pytest.mark.xdist_group("s3")
def test_the_s3_block_runs(s3_table: tuple[str, dict[str, str]]) -> None:
    run_on_store("python s3", "s3://bucket/orders", s3_table)


@pytest.mark.xdist_group("azure")
def test_the_azure_block_runs(azure_table: tuple[str, dict[str, str]]) -> None:
    run_on_store("python azure", "az://container/orders", azure_table)


def test_every_part_has_a_design_page() -> None:
    pages = {page.stem for page in (REPOSITORY / "docs" / "design").glob("*.md")}
    parts = (
        "store formats manifest wal generations sharding writer reading compaction gc indexes search spark command-line"
    )
    assert set(parts.split()) <= pages
