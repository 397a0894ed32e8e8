"""The JVM face: what the planner pushes down, what it is told, which side is in use, and what happens without it."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from killing import Driver

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.errors import UnavailableError
from lance_memwal.spark.face import load
from lance_memwal.spark.face.load import load_face
from tests.kit.spark import append_only, keyed

pytestmark = pytest.mark.face

PREDICATES = [
    "n > 2",
    "not (n = 2)",
    "n <=> null",
    "not (n <=> 3)",
    "n in (1, 3) or value is null",
    "value >= 'b' and value < 'd'",
    "f > 1.5",
    "f = double('NaN') or n = 1",
    "f >= -0.0",
    "upper(value) = 'B' and n < 100",
    "day = date'2024-02-29' or moment >= timestamp'2024-03-10 12:00:00'",
    "price in (1.10, 2.20) and id between 1 and 50",
    "value collate UTF8_LCASE = 'B'",
]


@pytest.fixture(scope="module")
def many(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of many types in all tiers, nulls and NaN among them."""
    uri = str(tmp_path_factory.mktemp("face") / "many")
    schema = "id long not null, value string, n int, f double, day date, moment timestamp, price decimal(10, 2)"
    frame = spark.range(60).selectExpr(
        "id",
        "nullif(array('a', 'b', 'B', 'c', '')[id % 5], '') as value",
        "if(id % 7 = 0, null, cast(id % 5 as int)) as n",
        "array(double('NaN'), -0.0D, 0.0D, 1.5D, 2.5D, null)[id % 6] as f",
        "date_add(date'2024-02-27', cast(id % 4 as int)) as day",
        "timestamp'2024-03-10 00:00:00' + make_interval(0, 0, 0, 0, cast(id as int)) as moment",
        "cast(id % 3 * 1.10 as decimal(10, 2)) as price",
    )
    columns = ms.arrow_schema_for(spark.createDataFrame([], schema).schema)
    table = mw.create_table(uri, columns, primary_key="id", sharding=mw.Bucket("id", 2))
    frame.write.format("memwal").mode("append").save(uri)
    ms.flush(spark, uri, force=True)
    table.compact()
    frame.where("id < 30").selectExpr("id", "value", "n + 1 as n", "f", "day", "moment", "price").write.format(
        "memwal"
    ).mode("append").save(uri)
    frame.where("id % 10 = 0").write.format("memwal").mode("append").option("operation", "delete").save(uri)
    return uri


def explained(frame: Any, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    frame.explain()
    return capsys.readouterr().out


def test_the_face_is_in_use_and_says_so(spark: Any, many: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ms.face(spark) == "jvm"
    assert "memwal [filter: none]" in explained(spark.read.format("memwal").load(many), capsys)
    assert "(Python)" in explained(spark.read.format("memwal_py").load(many), capsys)


def test_query_columns_are_read_and_exact_filters_pushed(
    spark: Any, many: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = spark.read.format("memwal").load(many).where("n > 2 and f > 1").select("value")
    shown = explained(frame, capsys)
    assert "`n` > 2" in shown
    (scan,) = [line for line in shown.splitlines() if "BatchScan" in line]
    assert "value#" in scan
    assert "f#" in scan
    assert "price#" not in scan
    assert "n#" not in scan.replace("BatchScan", "")
    assert "Filter" in shown  # floats are compared by Spark


@pytest.mark.parametrize("predicate", PREDICATES)
def test_rows_are_the_same_with_and_without_push_down(spark: Any, many: str, predicate: str) -> None:
    pushed = spark.read.format("memwal").load(many).where(predicate)
    plain = spark.read.format("memwal_py").load(many).where(predicate)
    expected = sorted(map(str, plain.collect()))
    assert sorted(map(str, pushed.collect())) == expected
    assert pushed.count() == len(expected)


def test_a_frame_used_with_two_filters_and_joined_with_itself_is_right(spark: Any, many: str) -> None:
    frame = spark.read.format("memwal").load(many)
    total = frame.count()
    assert frame.where("n = 1").count() + frame.where("n <> 1 or n is null").count() == total == 54
    one, other = frame.where("n = 1").alias("a"), frame.where("id < 10").alias("b")
    both = one.join(other, "id")
    assert both.count() == frame.where("n = 1 and id < 10").count()
    assert one.select("id").union(other.select("id")).count() == frame.where("n = 1").count() + 9


def test_counts_come_from_the_snapshot(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = append_only(str(tmp_path / "plain"), 2)
    spark.range(40).selectExpr("id", "'x' as value").write.format("memwal").mode("append").save(table.uri)
    frame = spark.read.format("memwal").load(table.uri)
    assert frame.count() == 40
    assert "LocalTableScan" in explained(frame.groupBy().count(), capsys)
    assert "counts" in explained(frame.where("id > 3").groupBy().count(), capsys)
    assert frame.where("id > 3").count() == 36
    empty = keyed(str(tmp_path / "empty"), 2)
    assert spark.read.format("memwal").load(empty.uri).count() == 0
    assert spark.read.format("memwal").load(empty.uri).where("n = 1").count() == 0


def test_a_limit_reads_no_more_rows_than_it_needs(spark: Any, many: str, capsys: pytest.CaptureFixture[str]) -> None:
    frame = spark.read.format("memwal").load(many)
    assert "limit: 7" in explained(frame.limit(7), capsys)
    assert len(frame.limit(7).collect()) == 7
    assert len(frame.where("n = 1").limit(3).collect()) == 3
    assert len(frame.where("f > 1").limit(3).collect()) == 3  # which Spark filters: nothing is pushed


def test_only_small_tables_are_broadcast(
    spark: Any, many: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = append_only(str(tmp_path / "large"), 1)
    spark.range(600_000).selectExpr("id", "'value' as value").write.format("memwal").mode("append").save(large.uri)
    big, small = spark.read.format("memwal").load(large.uri), spark.read.format("memwal").load(many)
    shown = explained(big.join(small, "id"), capsys)
    assert "BroadcastHashJoin" in shown
    assert "BuildRight" in shown
    assert "BuildLeft" in explained(small.join(big, "id"), capsys)


def test_every_query_sees_the_table_as_it_is_then(spark: Any, uri: str) -> None:
    table = keyed(uri)
    frame = spark.read.format("memwal").load(uri)
    for count in (1, 2):
        with table.writer() as writer:
            writer.put({"id": [count]}, missing="null")
        assert frame.count() == len(frame.select("id").collect()) == count


def test_nested_columns_and_views_work_through_the_face(spark: Any, uri: str) -> None:
    kinds = pa.struct([("a", pa.int32()), ("b", pa.string())])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("meta", kinds), ("tags", pa.list_(pa.string()))])
    table = mw.create_table(uri, schema, primary_key="id")
    with table.writer() as writer:
        writer.put({"id": [1, 2], "meta": [{"a": 1, "b": "x"}, None], "tags": [["t"], []]})
    frame = spark.read.format("memwal").load(uri)
    assert sorted(map(str, frame.select("meta.a").collect())) == ["Row(a=1)", "Row(a=None)"]
    assert frame.where("meta.b = 'x'").select("id").collect()[0]["id"] == 1
    assert frame.selectExpr("explode(tags) as tag").collect()[0]["tag"] == "t"


# --------------------------------------------------------------------------------------------------- with and without


def test_a_jar_is_made_once_and_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def compile_to(sources: list[Path], directory: Path) -> None:
        calls.append(len(sources))
        (directory / "io").mkdir()
        (directory / "io" / "X.class").write_bytes(b"class")

    assert load.cached_jar("4.3.0") is None
    made = load.jar_for("4.3.0", compile_to)
    assert load.jar_for("4.3.0", compile_to) == load.cached_jar("4.3.0") == made
    assert load.jar_for("4.3.1", compile_to) != made
    assert calls == [len(load.sources())] * 2
    assert [path.name.startswith("memwal-face-") for path in made.parent.iterdir()] == [True, True]
    assert made.parent.stat().st_mode & 0o777 == 0o700
    os.chmod(made.parent, 0o777)
    with pytest.raises(UnavailableError, match="others may write"):
        load.jar_for("4.3.0", compile_to)


def test_untried_version_gets_the_python_source_and_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings: dict[str, str] = {}
    session = SimpleNamespace(version="9.9.9", conf=SimpleNamespace(get=settings.get, set=settings.__setitem__))
    with caplog.at_level(logging.WARNING, "lance_memwal"):
        load_face(session)
        load_face(session)
    assert ms.face(session) == "python"
    assert [record.getMessage() for record in caplog.records] == [
        "Spark works with the pure Python source: the JVM face is not loaded, since it was not tried with Spark 9.9.9"
    ]


def test_a_session_without_the_face_reads_and_writes_all_the_same(tmp_path: Path) -> None:
    driver = Driver([str(tmp_path)], tmp_path / "log", script="faceless_child.py")
    try:
        assert driver.process.wait(900) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        driver.kill_all()
    assert (tmp_path / "result").read_text() == "python 90 90 1"
