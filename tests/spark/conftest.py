"""One Spark session for every test of this directory, in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killing import MODULES

HERE = Path(__file__).parent
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(1800))
            item.add_marker(pytest.mark.filterwarnings("ignore:lance is not fork-safe"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    import lance_memwal.spark as ms

    os.environ["PYTHONPATH"] = os.pathsep.join([MODULES, os.environ.get("PYTHONPATH", "")])
    made = ms.session(
        "local[2,4]",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.extraJavaOptions": JVM,
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.log.level": "ERROR",
            "spark.ui.enabled": True,  # a test reads what it shows
            "spark.ui.port": 0,
            "spark.sql.streaming.stopTimeout": "30s",
        },
    )
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """What keeps logs short beside commits of this process ends with the test."""
    yield
    from lance_memwal.spark.joining import release

    release()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")
