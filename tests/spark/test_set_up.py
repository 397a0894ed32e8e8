"""Nothing to set up: plain PySpark finds the format, Java comes from somewhere, and without the JVM face all else works."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from killing import Driver, fake_java

import lance_memwal.spark as ms
from lance_memwal.spark import batch_reports
from lance_memwal.spark.batch_reports import BatchStats
from lance_memwal.spark.session import provide_java
from lance_memwal.write.once import AppendResult
from tests.kit.spark import ROWS_PER_FILE, append_only, finish, forget_last_commit, judge, keyed, make_input


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


def test_session_runs_on_the_java_of_a_wheel_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_java_home_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert provide_java() is None
    assert os.environ["JAVA_HOME"] == "/somewhere"


def test_a_new_enough_java_of_the_machine_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "21.0.1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert provide_java() is None
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("machine_has", ["", "11.0.2"])
def test_usable_java_is_provided_if_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine_has: str) -> None:
    if machine_has:
        fake_java(tmp_path / "bin", machine_has)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/nowhere")
    home = provide_java()
    assert home is not None
    assert os.environ["JAVA_HOME"] == home
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "version" in shown.stderr


HERE = Path(__file__).parent
OWN_DRIVERS = ("cluster", "connect", "killed_drivers", "killed_writers", "set_up", "without_the_face")


@pytest.mark.prove
@pytest.mark.timeout(7200)  # it is a suite
def test_every_test_that_needs_no_face_passes_without_it() -> None:
    """`make test` has a small sibling: a session without the face, in `test_face.py`."""
    ignored = [f"--ignore={HERE / f'test_{name}.py'}" for name in OWN_DRIVERS]
    environment = {**os.environ, "LANCE_MEMWAL_TEST_FACE": "off", "LANCE_MEMWAL_PROFILE": "ci"}
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", str(HERE), *ignored]
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout


# The progress listener: what a query read, wrote, and left out because the table had it already.

RUN = "0e2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"


@pytest.fixture
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"memwal-progress-{os.getuid()}"


def watched(spark: Any, start: Any) -> ms.QueryStats:
    """What a listener has counted when the query has ended."""
    listener = ms.ProgressListener()
    spark.streams.addListener(listener)
    try:
        query = finish(start)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    return listener.queries[str(query.runId)]


@pytest.mark.parametrize("way", ["sink", "executors"])
def test_a_replayed_batch_is_counted_as_skipped(spark: Any, uri: str, tmp_path: Path, way: str) -> None:
    table = append_only(uri, 2)
    expected = make_input(tmp_path / "in", 3)

    def start() -> Any:
        stream = spark.readStream.schema("id long, value string").option("maxFilesPerTrigger", 1)
        writer = stream.json(str(tmp_path / "in")).writeStream
        if way == "sink":
            writer = writer.format("memwal").option("path", uri)
        else:
            writer = writer.foreachBatch(lambda df, n: ms.write_batch(df, uri, n, operation="append"))
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    first = watched(spark, start)
    assert (first.batches, first.rows, first.rows_written) == (3, 3 * ROWS_PER_FILE, 3 * ROWS_PER_FILE)
    assert (first.skipped_batches, first.skipped_shards) == (0, 0)
    assert first.size_bytes > 0
    forget_last_commit(tmp_path / "c")
    second = watched(spark, start)
    assert (second.batches, second.rows, second.rows_written, second.size_bytes) == (1, ROWS_PER_FILE, 0, 0)
    assert (second.skipped_batches, second.skipped_shards) == (1, 2)
    assert judge(table, expected) == (0, 0)


def test_a_half_written_batch_counts_its_shards_only(own_directory: Path) -> None:
    results = [AppendResult("a", 5, skipped=True), AppendResult("b", 7)]
    stats = BatchStats.of(results, [10, 20])
    assert stats == BatchStats(rows=7, size_bytes=20, shards=2, skipped_shards=1)
    assert not stats.is_skipped
    batch_reports.announce(RUN)
    batch_reports.report(RUN, 4, stats)
    batch_reports.report(RUN, 4, stats)  # a second table of the same foreachBatch
    assert batch_reports.collect(RUN, 4) == stats + stats
    assert batch_reports.collect(RUN, 4) is None
    batch_reports.retire(RUN)
    assert list(own_directory.iterdir()) == []


def test_without_a_listener_nothing_is_left_anywhere(own_directory: Path) -> None:
    batch_reports.report(RUN, 1, BatchStats(1, 1, 1, 0))
    batch_reports.report(None, 1, BatchStats(1, 1, 1, 0))
    batch_reports.report("../elsewhere", 1, BatchStats(1, 1, 1, 0))
    assert not own_directory.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"rows": 1, "other": 2}'])
def test_unreadable_report_is_logged(own_directory: Path, caplog: pytest.LogCaptureFixture, content: str) -> None:
    batch_reports.announce(RUN)
    (own_directory / RUN / "3").write_text(content)
    with caplog.at_level(logging.WARNING):
        assert batch_reports.collect(RUN, 3) is None
    assert "batch 3 cannot be read" in caplog.text


def test_a_directory_that_is_not_ours_is_not_used(own_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs" / RUN).mkdir(parents=True)
    (tmp_path / "theirs" / RUN / "1").write_text(json.dumps({"rows": 9}))
    own_directory.symlink_to(tmp_path / "theirs")
    batch_reports.announce(RUN)
    batch_reports.report(RUN, 2, BatchStats(1, 1, 1, 0))
    assert batch_reports.collect(RUN, 1) is None
    assert not (tmp_path / "theirs" / RUN / "2").exists()
