"""Input files for a stream, runs of it, and the count of what arrived."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance_memwal as mw

ROWS_PER_FILE = 40


def make_input(directory: Path, files: int) -> list[int]:
    """One file per micro-batch; returns every id."""
    directory.mkdir(parents=True)
    for number in range(files):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        text = "\n".join(json.dumps({"id": i, "value": str(i)}) for i in ids)
        (directory / f"{number:05d}.json").write_text(text)
    return list(range(files * ROWS_PER_FILE))


def start(spark: Any, source: Path, uri: str, checkpoint: Path, *, fmt: str = "memwal", **options: Any) -> Any:
    stream = spark.readStream.schema("id long, value string").option("maxFilesPerTrigger", 1).json(str(source))
    writer = stream.repartition(2).writeStream.format(fmt).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(uri)


def run_until_done(spark: Any, source: Path, uri: str, checkpoint: Path, **options: Any) -> int:
    """Run the query, again after each failure, until it ends by itself; returns the number of failures."""
    for failures in range(200):
        query = start(spark, source, uri, checkpoint, **options)
        try:
            assert query.awaitTermination(600)
        except Exception:
            continue
        return failures
    raise AssertionError("the query never ended")


def finish(start_query: Callable[[], Any]) -> Any:
    """The query, ended; begun again where a busy machine was slower than Spark waits for a Python process."""
    for _ in range(8):
        try:
            query = start_query()
            assert query.awaitTermination(600)
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
            continue
        return query
    raise AssertionError("Spark could not start its Python process")


def forget_last_commit(checkpoint: Path) -> None:
    """Let the checkpoint forget that its last micro-batch was committed, so that Spark replays it."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def judge(table: mw.Table, expected: list[int]) -> tuple[int, int]:
    """(lost, duplicated) ids."""
    counts = Counter(table.scan(columns=["id"]).to_table().column("id").to_pylist())
    assert set(counts) <= set(expected), "rows that nobody wrote"
    return len(set(expected) - set(counts)), sum(count - 1 for count in counts.values())
