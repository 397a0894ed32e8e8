"""The second process, which reads for all lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.tables import Outside


@pytest.fixture(scope="package")
def elsewhere() -> Iterator[Outside]:
    """One second process for all runs."""
    process = Outside()
    yield process
    process.close()
