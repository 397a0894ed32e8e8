"""The code of the Spark how-tos, run from the first block of a page to its last.

There is no Kafka here: its source is replaced by one of files with the same columns.
"""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
PAGES = Path(__file__).resolve().parents[2] / "docs" / "howto"
PLACES = r'"(orders|copy of orders|checkpoint|warehouse)"'


def write_topic(directory: Path, topic: str, records: list[tuple[str, Any]]) -> None:
    """Records of a topic, two per micro-batch; one of None has no value."""
    directory.mkdir()
    lines = [
        {
            "key": base64.b64encode(key.encode()).decode(),
            "value": None if value is None else base64.b64encode(json.dumps(value).encode()).decode(),
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": "2026-01-01T00:00:00Z",
            "timestampType": 0,
        }
        for offset, (key, value) in enumerate(records)
    ]
    for number in range(0, len(lines), 2):
        file = directory / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, lines[number : number + 2])))
        os.utime(file, (number, number))  # Spark takes files in the order of their age


def run(spark: Any, tmp_path: Path, page: str, count: int) -> dict[str, Any]:
    """Every block of a page; the names that they leave."""
    blocks = re.findall(r"^```python spark\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == count
    names: dict[str, Any] = {"__name__": "howto"}
    for block in blocks:
        # Spark's workers do not follow a change of the directory, so that the places become absolute ones.
        text = re.sub(PLACES, lambda found: repr(str(tmp_path / found[1])), block)
        files = f'schema({KAFKA!r}).option("maxFilesPerTrigger", 1).option("path", {str(tmp_path / "kafka")!r})'
        text = text.replace('readStream.format("kafka")', f'readStream.{files}.format("json")')
        exec(compile(text, page, "exec"), names)
    assert names["spark"].sparkContext is spark.sparkContext
    return names


@pytest.mark.parametrize(
    ("page", "count"), [("spark-pipeline.md", 7), pytest.param("spark-sql.md", 6, marks=pytest.mark.face)]
)
def test_every_block_of_the_how_to_runs(spark: Any, tmp_path: Path, page: str, count: int) -> None:
    names: dict[str, Any] = {}
    try:
        names = run(spark, tmp_path, page, count)
    finally:
        if "listener" in names:
            spark.streams.removeListener(names["listener"])
        spark.sql("DROP VIEW IF EXISTS orders")


def test_a_topic_of_kafka_becomes_a_table(spark: Any, tmp_path: Path) -> None:
    tea, iced, salt = {"item": "tea", "n": 1}, {"item": "iced tea", "n": 2}, {"item": "salt", "n": 3}
    records = [("1", tea), ("1", iced), ("2", tea), ("3", salt), ("2", None)]
    write_topic(tmp_path / "kafka", "orders", records)
    run(spark, tmp_path, "spark-kafka.md", 2)


def test_envelopes_of_debezium_become_rows_and_deletes_in_any_order(spark: Any, tmp_path: Path) -> None:
    def envelope(op: str, lsn: int, key: int, item: str) -> tuple[str, Any]:
        row = {"id": key, "item": item, "n": 1}
        sides = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        return str(key), {"op": op, "source": {"lsn": lsn}, **sides}

    records = [
        envelope("u", 40, 1, "iced tea"),
        envelope("r", 10, 1, "tea"),  # late
        envelope("c", 20, 2, "ice"),
        envelope("d", 50, 3, "salt"),
        ("3", None),
        envelope("c", 30, 3, "salt"),  # after its delete
        envelope("d", 45, 2, "ice"),
        envelope("c", 60, 4, "oil"),
    ]
    write_topic(tmp_path / "kafka", "shop.public.orders", records)
    run(spark, tmp_path, "spark-debezium.md", 2)


def test_a_backfill_runs_beside_a_stream(spark: Any, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    try:
        names = run(spark, tmp_path, "spark-backfill.md", 2)
    finally:
        if "query" in names:
            names["query"].stop()
