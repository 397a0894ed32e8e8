"""A standalone master with two workers: everything works there, and speculation writes nothing twice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from killing import MODULES, Driver, wait_for

from lance_memwal.spark.java import provide_java
from tests.kit.spark_sql import EXPECTED_SQL

LAUNCHER = Path(pyspark.__file__).parent / "bin" / "spark-class"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each, on two hosts."""
    provide_java()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "SPARK_NO_DAEMONIZE": "1", "PYTHONPATH": MODULES}
    address = f"spark://127.0.0.1:{port}"
    running = []

    def start(name: str, role: str, *arguments: str) -> None:
        with (tmp_path / f"{name}.log").open("wb") as log:
            command = [str(LAUNCHER), f"org.apache.spark.deploy.{role}", "--webui-port", "0", *arguments]
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port))
        wait_for(lambda: _listens(port), "the master to listen")
        for host in ("127.0.0.1", "127.0.0.2"):
            work = str(tmp_path / f"work-{host}")
            start(host, "worker.Worker", "--host", host, "-c", "2", "-m", "1g", "-d", work, address)
        registered = tmp_path / "master.log"
        wait_for(lambda: registered.read_text().count("Registering worker") == 2, "two workers")
        yield address
    finally:
        for process in reversed(running):
            process.kill()
            process.wait(60)


def test_sinks_source_compaction_and_speculation_on_two_workers(master: str, tmp_path: Path) -> None:
    driver = Driver([master, str(tmp_path)], tmp_path / "log", script="cluster_child.py")
    try:
        assert driver.process.wait(1500) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        driver.kill_all()
    result = json.loads((tmp_path / "result.json").read_text())
    speculation = result.pop("speculation")
    assert speculation.pop("second_attempts") > 0
    assert speculation == {"lost": 0, "duplicated": 0}
    assert result == {
        "compacted": 200,
        "by_tasks": [20, 50, 1],
        "base": True,
        "read": 160,
        "ids": 160,
        "stream": [0, 0],
        "sql": EXPECTED_SQL,
    }
