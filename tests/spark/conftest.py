"""One Spark session for every test of this directory, in one process; and a cluster for those that need one."""

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from killing import MODULES, wait_for

from tests.kit.canaries import CREDENTIALS
from tests.kit.spark import LIGHT_JVM

HERE = Path(__file__).parent
FACE = os.environ.get("LANCE_MEMWAL_TEST_FACE", "auto")  # "off": tests that need no JVM face, without it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if FACE == "off":
        needing = [item for item in items if item.get_closest_marker("face")]
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(1800))
            item.add_marker(pytest.mark.filterwarnings("ignore:lance is not fork-safe"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))


def canaries(warehouse: Path) -> dict[str, str]:
    """A catalog whose every credential is a canary: a test looks for them in all that Spark shows."""
    catalog = "spark.sql.catalog.canaries"
    named = {catalog: "io.memwal.spark.MemWalCatalog", f"{catalog}.warehouse": str(warehouse)}
    return named | {f"{catalog}.storage.{name}": value for name, value in CREDENTIALS.items()}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import lance_memwal.spark as ms

    os.environ["PYTHONPATH"] = os.pathsep.join([MODULES, os.environ.get("PYTHONPATH", "")])
    made = ms.session(
        "local[2,4]",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.extraJavaOptions": LIGHT_JVM,
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.log.level": "ERROR",
            "spark.memwal.face": FACE,
            "spark.ui.enabled": True,  # a test reads what it shows
            "spark.ui.port": 0,
            "spark.sql.streaming.stopTimeout": "30s",
            **canaries(tmp_path_factory.mktemp("canaries")),
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


# ---------------------------------------------------------------------------------------------------------- a cluster


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster: the address of its master, and the processes of its workers."""

    master: str
    workers: tuple[int, ...]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master with two workers of two cores each, on two hosts."""
    import pyspark

    from lance_memwal.spark.session import provide_java

    provide_java()
    launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
    place = tmp_path_factory.mktemp("cluster")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "SPARK_NO_DAEMONIZE": "1",
        "PYTHONPATH": MODULES,
        "JAVA_TOOL_OPTIONS": LIGHT_JVM,
        "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",  # executors that tests kill say nothing of an application
    }
    address = f"spark://127.0.0.1:{port}"
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, role: str, *arguments: str) -> None:
        with (place / f"{name}.log").open("wb") as log:
            command = [str(launcher), f"org.apache.spark.deploy.{role}", "--webui-port", "0", *arguments]
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port))
        wait_for(lambda: _listens(port), "the master to listen")
        for host in ("127.0.0.1", "127.0.0.2"):
            work = str(place / f"work-{host}")
            start(host, "worker.Worker", "--host", host, "-c", "2", "-m", "1g", "-d", work, address)
        registered = place / "master.log"
        wait_for(lambda: registered.read_text().count("Registering worker") == 2, "two workers")
        yield Cluster(address, tuple(process.pid for process in running[1:]))
    finally:
        for process in reversed(running):
            process.kill()
            process.wait(60)
