"""The blocks of the documentation that need more than Python: a shell, an S3 service, an Azure service.

Plain Python blocks run in `test_python_blocks.py`, those with Spark in `tests/spark`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.documentation import blocks
from tests.kit.warm_command import warm_command

ROOT = Path(__file__).resolve().parents[2]
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
    pages = {page.stem for page in (ROOT / "docs" / "design").glob("*.md")}
    parts = (
        "store formats manifest wal generations sharding writer reading compaction gc indexes search spark command-line"
    )
    assert set(parts.split()) <= pages
