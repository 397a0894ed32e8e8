"""The code of the Spark how-tos, run from the first block of a page to its last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "howto"


@pytest.mark.parametrize(("page", "count"), [("spark-pipeline.md", 7), ("spark-sql.md", 6)])
def test_every_block_of_the_how_to_runs(spark: Any, tmp_path: Path, page: str, count: int) -> None:
    blocks = re.findall(r"^```python spark\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == count
    names: dict[str, Any] = {"__name__": "howto"}
    try:
        for block in blocks:
            # Spark's workers do not follow a change of the directory, so that the places become absolute ones.
            text = re.sub(
                r'"(orders|copy of orders|checkpoint|warehouse)"', lambda found: repr(str(tmp_path / found[1])), block
            )
            exec(compile(text, page, "exec"), names)
        assert names["spark"].sparkContext is spark.sparkContext
    finally:
        if "listener" in names:
            spark.streams.removeListener(names["listener"])
        spark.sql("DROP VIEW IF EXISTS orders")
