"""Tables of killed processes lie in memory: what a signal ends, its disk survives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.memory_disk import memory_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty directory."""
    with memory_directory() as place:
        yield place
