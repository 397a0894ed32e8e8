"""Tables of killed processes lie in memory: what a signal ends, its disk survives."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import memory_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with memory_directory() as place:
        yield place
