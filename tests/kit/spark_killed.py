"""Several writers of one table whose drivers are killed: what they are given, and what must be there in the end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import lance_memwal as mw
from tests.kit.spark_tables import rows_of

BACKFILL = 1_000_000
STREAM_ROWS = 20
JOB_ROWS = 20


def make_places(root: Path) -> None:
    for name in ("in-a", "in-b", "jobs", "tasks", "speculated"):
        (root / name).mkdir(parents=True)


def give_streams(root: Path, number: int) -> None:
    """One more micro-batch for each of the two streams."""
    for name, first in (("a", 0), ("b", 500_000)):
        ids = range(first + number * STREAM_ROWS, first + (number + 1) * STREAM_ROWS)
        text = "\n".join(json.dumps({"id": i, "value": "stream", "n": i}) for i in ids)
        hidden = root / f"in-{name}" / f".{number}"
        hidden.write_text(text)
        hidden.rename(root / f"in-{name}" / f"{number:05d}.json")


def committed(root: Path, name: str) -> int:
    """How many micro-batches of a stream are done."""
    place = root / f"checkpoint-{name}" / "commits"
    return sum(1 for path in place.glob("[0-9]*")) if place.is_dir() else 0


def job_ids(root: str | Path) -> list[int]:
    """The jobs that are done."""
    return sorted(int(path.name) for path in Path(root, "jobs").iterdir())


def merged_ids(job: int) -> list[int]:
    """The rows of a part of the backfill that the merge after it changes, and one that it adds."""
    first = BACKFILL + job * JOB_ROWS
    return [first, first + 1, first + 2, 2 * BACKFILL + job]


def expected_rows(root: Path, micro_batches: int) -> dict[int, tuple[str, int]]:
    """What the table must show."""
    count = micro_batches * STREAM_ROWS
    jobs = len(job_ids(root))
    streamed = [*range(count), *range(500_000, 500_000 + count)]
    filled = range(BACKFILL, BACKFILL + jobs * JOB_ROWS)
    merged = [i for job in range(max(0, jobs - 1)) for i in merged_ids(job)]
    return (
        {i: ("stream", i) for i in streamed} | {i: ("backfill", i) for i in filled} | {i: ("merge", i) for i in merged}
    )


def lost_and_doubled(table: mw.Table, expected: dict[int, tuple[str, int]]) -> tuple[int, int]:
    """Rows that are missing or wrong, and rows of streams and of the backfill that were put more than once.

    The feed has every put: a row that was written twice is in it twice, whatever the table shows.
    """
    found = rows_of(table)
    assert set(found) <= set(expected), "rows that nobody wrote"
    lost = sum(found.get(key) != row for key, row in expected.items())
    puts: Counter[int] = Counter()
    for batch in table.changes(until="now", columns=["id", "value"]):
        once = [row["id"] for row in batch.to_pylist() if row["value"] != "merge"]
        puts.update(once)
    return lost, sum(count - 1 for count in puts.values())
