"""What a write did, where Spark's users look: the progress of a query, and the UI with its REST interface."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.kit.spark_once import ROWS_PER_FILE, finish, forget_last_commit, make_input, start
from tests.kit.spark_tables import append_only, keyed

pytestmark = pytest.mark.face
SHOWN = {
    "rows written to memwal shards": "rows",
    "bytes written to memwal shards": "size_bytes",
    "memwal shards that the write touched": "shards",
    "memwal shards that had this write already": "skipped_shards",
    "rows kept out by a condition or the merge of the table": "rejected_rows",
}


def shown_by_the_ui(spark: Any) -> list[tuple[str, dict[str, str]]]:
    """Per write that the SQL page knows, oldest first: its node, and our metrics of it."""
    context = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    place = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/sql?details=true&length=100000"
    with urllib.request.urlopen(place, timeout=60) as answer:
        executions = json.load(answer)
    nodes = [node for execution in executions for node in execution["nodes"]]
    writes = [node for node in nodes if node["nodeName"].startswith(("AppendData", "WriteDelta", "WriteToDataSource"))]
    return [
        (node["nodeName"].split(" ")[0], {SHOWN[m["name"]]: m["value"] for m in node["metrics"] if m["name"] in SHOWN})
        for node in writes
    ]


def test_the_progress_of_a_query_has_what_its_sink_wrote(spark: Any, uri: str, tmp_path: Path) -> None:
    append_only(uri, 2)
    make_input(tmp_path / "in", 2)

    def run() -> Any:
        return finish(lambda: start(spark, tmp_path / "in", uri, tmp_path / "c"))

    before = len(shown_by_the_ui(spark))
    (first, second) = [progress.sink for progress in run().recentProgress]
    assert first.description == f"memwal[{uri}]"
    assert int(first.metrics.pop("size_bytes")) > 0
    assert first.metrics == {"rows": str(ROWS_PER_FILE), "shards": "2", "skipped_shards": "0", "rejected_rows": "0"}
    assert second.metrics["rows"] == str(ROWS_PER_FILE)
    forget_last_commit(tmp_path / "c")
    (repeat,) = [progress.sink.metrics for progress in run().recentProgress]
    assert repeat == {"rows": "0", "size_bytes": "0", "shards": "2", "skipped_shards": "2", "rejected_rows": "0"}
    streamed = shown_by_the_ui(spark)[before:]
    assert len(streamed) >= 3
    assert all(metrics == {} for _, metrics in streamed), "the UI cannot show them of a stream, and shows no zeros"


def test_the_ui_shows_what_a_write_and_a_statement_did(spark: Any, uri: str) -> None:
    keyed(uri, 2)
    before = len(shown_by_the_ui(spark))
    frame = spark.range(100).selectExpr("id", "'x' as value", "int(id) as n")
    frame.write.format("memwal").mode("append").options(txnAppId="job", txnVersion=1).save(uri)
    frame.write.format("memwal").mode("append").options(txnAppId="job", txnVersion=1).save(uri)
    frame.where("id < 5").write.format("memwal").mode("append").option("ifAbsent", "true").save(uri)
    spark.sql(f"CREATE TABLE shown USING memwal OPTIONS (path '{uri}')")
    try:
        spark.sql("UPDATE shown SET n = 0 WHERE id < 3").collect()
    finally:
        spark.sql("DROP TABLE shown")
    (first, again, absent, update) = shown_by_the_ui(spark)[before:]
    assert int(first[1].pop("size_bytes")) > 0
    assert first == ("AppendData", {"rows": "100", "shards": "2", "skipped_shards": "0", "rejected_rows": "0"})
    assert (again[1]["rows"], again[1]["skipped_shards"]) == ("0", "2")
    assert (absent[1]["rows"], absent[1]["rejected_rows"]) == ("0", "5")
    assert (update[0], update[1]["rows"]) == ("WriteDelta", "3")
