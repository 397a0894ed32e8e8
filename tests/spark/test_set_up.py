"""Nothing to set up: plain PySpark finds the format, and a machine without Java gets one."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from killing import Driver, fake_java

from lance_memwal.spark.java import provide_java
from tests.kit.spark_tables import append_only, keyed


def run(script: str, tmp_path: Path) -> dict[str, Any]:
    driver = Driver([str(tmp_path)], tmp_path / "log", script=script)
    try:
        assert driver.process.wait(900) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        driver.kill_all()
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    return result


def test_a_plain_session_needs_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide_java()
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)  # an activated environment is enough for Spark
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    keyed(str(tmp_path / "table"), 2)
    append_only(str(tmp_path / "copy"), 2)
    assert run("plain_child.py", tmp_path) == {"read": 101, "sql": [["sql", 7]], "copied": 101, "imported": []}


NOISE = re.compile(
    r"replaced a (statically|previously) registered|fork-safe|(User|Future|Deprecation|Resource|Runtime)Warning"
    r"|is deprecated|lance.*WARN",
)


def test_a_whole_session_runs_on_the_java_of_a_wheel_and_says_nothing_of_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "bin", "11.0.2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert run("java_child.py", tmp_path) == {
        "given": None,
        "from_wheel": True,
        "compacted": 100,
        "read": 90,
        "ids": 95,
        "stream": [0, 0],
        "copied": 100,
    }
    log = (tmp_path / "log").read_text()
    assert [line for line in log.splitlines() if NOISE.search(line)] == []
