"""Over a Connect server: batch and streaming sink, source, executor mode, maintenance jobs."""

from __future__ import annotations

import json
from pathlib import Path

from killing import Driver

from tests.kit.spark_sql import EXPECTED_SQL


def test_sinks_source_and_compaction_work_over_connect(tmp_path: Path) -> None:
    driver = Driver([str(tmp_path)], tmp_path / "log", script="connect_child.py")
    try:
        assert driver.process.wait(1500) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        driver.kill_all()
    result = json.loads((tmp_path / "result.json").read_text())
    assert ".connect." in result.pop("kind")
    assert result == {
        "compacted": 200,
        "by_tasks": [0, 50, 1],
        "base": 150,
        "read": 160,
        "ids": 160,
        "stream": [0, 0],
        "written": [10, 0],
        "foreach_batch": [True, 2],
        "sql": EXPECTED_SQL,
    }
