"""The second process, which reads for all lives."""

from collections.abc import Iterator

import pytest

from tests.kit.tables import Outside


@pytest.fixture(scope="package")
def elsewhere() -> Iterator[Outside]:
    process = Outside()
    yield process
    process.close()
