"""The demo: lance-memwal at work on a temporary table, with real processes and a real Spark stream.

Run: `make demo`, or `python examples/demo.py [--no-spark] [--json]`

Each printed figure is measured in this run. The demo fails if a promise does not hold.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw

_DIMENSION = 16
_BASE_ROWS = 2_000
_ACKED_BEFORE_KILL = 300
_FRESH_READS = 20
_ROWS_FOR_ALL = 64  # enough that each shard gets some
_STREAM_SECONDS = 12.0
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("title", pa.string()),
        ("revision", pa.int64()),
        ("vector", pa.list_(pa.float32(), _DIMENSION)),
    ]
)
_TOPICS = ("river", "mountain", "harbour", "desert", "forest", "island", "glacier", "meadow")


@dataclass(slots=True)
class _Story:
    """The state that all chapters share: the table and the figures."""

    uri: str
    table: mw.Table
    figures: list[tuple[str, str]] = field(default_factory=list)
    chapter: int = 0

    def begin(self, title: str) -> None:
        self.chapter += 1
        print(f"\n{self.chapter}. {title}", flush=True)

    def note(self, what: str, value: str) -> None:
        self.figures.append((what, value))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Returns 0 if every promise held."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in _ROLES:
        return _ROLES[arguments[0]](*arguments[1:])
    if "--json" in arguments:
        with contextlib.redirect_stdout(sys.stderr):
            figures = _run(arguments)
        print(json.dumps(dict(figures)))
    else:
        _run(arguments)
    return 0


def _run(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Run all chapters and return the figures of the summary."""
    print("memwal demo: small durable writes and fresh reads on a Lance table, no server")
    with tempfile.TemporaryDirectory(prefix="memwal-demo-") as directory:
        story = _create(f"{directory}/articles")
        _kill_a_writer(story)
        _fence(story)
        if left_out := why_without_spark(arguments):
            _say(f"({left_out})")
        else:
            _stream(story, directory)
        _search(story)
        _maintain(story)
        _open_with_pylance(story)
        _summary(story)
    return story.figures


def why_without_spark(arguments: Sequence[str]) -> str | None:
    """The reason to skip the Spark chapter, or None."""
    if "--no-spark" in arguments:
        return "the Spark chapter is skipped"
    if importlib.util.find_spec("pyspark") is None:
        return "the Spark chapter is skipped: it needs pip install 'lance-memwal[spark]'"
    return None


def _say(text: str) -> None:
    print(f"   {text}", flush=True)


def _check(holds: bool, promise: str) -> None:
    if not holds:
        raise SystemExit(f"demo failed: {promise}")


# ------------------------------------------------------------------------------------------------------- chapters


def _create(uri: str) -> _Story:
    base = pa.Table.from_pylist([_row(i, 0) for i in range(_BASE_ROWS)], schema=_SCHEMA)
    story = _Story(uri, mw.create_table(uri, base, primary_key="id", sharding=mw.Bucket("id", 4)))
    story.begin("A Lance table with a write path")
    story.table.dataset.create_scalar_index("title", "INVERTED")
    _say(f"{_BASE_ROWS:,} articles with text and {_DIMENSION}-dimensional vectors, spread over 4 shards by id")
    return story


def _kill_a_writer(story: _Story) -> None:
    story.begin("Another process writes and is killed; its rows are visible at once and none is lost")
    writer = _start("write", story.uri)
    acked: list[int] = []
    freshness: list[float] = []
    while len(acked) < _ACKED_BEFORE_KILL:
        row, acked_ms = (int(part) for part in _read_line(writer).split())
        acked.append(row)
        if len(acked) % (_ACKED_BEFORE_KILL // _FRESH_READS) == 0:
            seen = story.table.get(row)
            freshness.append(time.time_ns() // 1_000_000 - acked_ms)
            _check(seen is not None and seen["revision"] == 1, "a durable row is visible in another process at once")
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    started = time.monotonic()
    with story.table.writer() as recovered:
        recovered.put([_row(row, 2) for row in acked[-_ROWS_FOR_ALL:]])
        seconds = time.monotonic() - started
        found = recovered.lookup(acked, ["id", "revision"])
    lost = len(acked) - found.num_rows
    _check(lost == 0, "no durable row is lost")
    left = [info.shard_id for info in story.table.shards() if info.epoch == 1]
    _check(not left, f"every shard has a new owner: {left}")
    _say(f"{len(acked)} durable puts, SIGKILL, {lost} lost; a new writer claimed the shards and wrote")
    typical = float(np.median(freshness))
    story.note("durable rows lost by SIGKILL", f"{lost} of {len(acked)}")
    story.note("freshness: from durable in one process to read in another", f"{typical:.0f} ms (median)")
    story.note("recovery: open, replay, first durable write", f"{seconds * 1e3:.0f} ms")


def _fence(story: _Story) -> None:
    story.begin("Two writers on one shard: the newer one fences the older one")
    shard = mw.shard_id_for(mw.Bucket("id", 4), 1)
    old = story.table.shard_writer(shard)
    new = story.table.shard_writer(shard)
    try:
        old.put([_row(1, 98)])
    except mw.FencedError as error:
        _say(f"the older writer gets an error: {error}".split(";")[0])
    else:
        _check(holds=False, promise="a fenced writer never acknowledges a write")
    new.put([_row(1, 3)])
    row = story.table.get(1)
    _check(row is not None and row["revision"] == 3, "readers see the write of the owner only")
    _say("the newer writer continues, and readers see its row")
    new.close()
    old.abort()


def _stream(story: _Story, directory: str) -> None:
    story.begin("Spark streams upserts with embeddings; queries answer while it runs")
    import lance_memwal.spark as ms

    with _quiet_stderr():
        spark = ms.session("local[2]", **{"spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"})
        numbers = ", ".join(f"cast(sin(value * {i + 1}) as float)" for i in range(_DIMENSION))
        topics = ", ".join(f"'{topic}'" for topic in _TOPICS)
        rows = spark.readStream.format("rate").option("rowsPerSecond", 400).load()
        upserts = rows.selectExpr(
            "value % 3000 as id",
            f"concat('streamed ', element_at(array({topics}), cast(value % {len(_TOPICS)} + 1 as int))) as title",
            "value + 1000 as revision",
            "value as newest",
            f"array({numbers}) as vector",
        )
        query = (
            upserts.writeStream.format("memwal")
            .option("sequenceBy", "newest")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(processingTime="1 second")
            .start(story.uri)
        )
        try:
            _watch(story, spark, query)
        finally:
            query.stop()
            spark.stop()


def _watch(story: _Story, spark: Any, query: Any) -> None:
    """Query from this process, from another process and from Spark SQL while the stream runs."""
    seen: list[int] = []
    deadline = time.monotonic() + 90
    running = time.monotonic() + _STREAM_SECONDS
    while time.monotonic() < deadline and (time.monotonic() < running or not seen or seen[-1] == 0):
        query.awaitTermination(2)
        _check(query.exception() is None, f"the stream runs: {query.exception()}")
        seen.append(story.table.count_rows("revision >= 1000"))
        if seen[-2:-1] != seen[-1:]:
            _say(
                f"streamed rows visible in Python: {seen[-1]:,}"
                if seen[-1]
                else "waiting for Spark's first micro-batch"
            )
    _check(seen[-1] > 0 and seen == sorted(seen), "streamed rows appear and stay")
    _query(story)
    spark.read.format("memwal").load(story.uri).createOrReplaceTempView("articles")
    (counted,) = spark.sql("SELECT count(*) FROM articles WHERE revision >= 1000").first()
    with _start("count", story.uri) as counting:
        other = int(_read_line(counting))
    _say(f"Spark SQL counts {counted}, a third process counts {other}, while the stream runs")
    _check(counted >= seen[-1] and other >= seen[-1], "every reader sees every durable row")
    while not (batches := _batches_ms(query)) and time.monotonic() < deadline:
        query.awaitTermination(1)  # rows are visible before Spark has reported their micro-batch
    _check(bool(batches), "Spark reports its micro-batches")
    story.note("rows streamed by Spark, exactly once", f"{other} (median trigger {np.median(batches):.0f} ms)")


def _batches_ms(query: Any) -> list[int]:
    """Duration of each micro-batch with rows."""
    return [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]


def _query(story: _Story) -> None:
    """Run each kind of query while the stream runs."""
    table = story.table
    row = table.scan(filter="revision >= 1000", limit=1).to_table().to_pylist()[0]
    queries: dict[str, Callable[[], int]] = {
        "scan": lambda: table.count_rows("revision >= 1000"),
        "get": lambda: table.lookup([row["id"]]).num_rows,
        "vector": lambda: table.search(vector=row["vector"], k=5, columns=["id"]).num_rows,
        "text": lambda: table.search(text="streamed", k=5, columns=["id"]).num_rows,
    }
    times = []
    for name, ask in queries.items():
        started = time.monotonic()
        _check(ask() > 0, f"{name} answers while the stream runs")
        times.append(f"{name} {(time.monotonic() - started) * 1e3:.0f}")
    _say(f"queries during the stream, in ms: {', '.join(times)}")
    story.note("queries during the stream", f"{', '.join(times)} ms")


def _search(story: _Story) -> None:
    story.begin("Search over base, flushed and fresh rows")
    table = story.table
    with table.writer() as writer:
        wanted = [1.0] + [0.0] * (_DIMENSION - 1)
        writer.put([{"id": 9_999_999, "title": "a lighthouse at the edge", "revision": 1, "vector": wanted}])
        near = writer.search(vector=wanted, k=3, columns=["id"])
        text = writer.search(text="lighthouse", k=3, columns=["id"])
        both = writer.search(vector=wanted, text="lighthouse", k=3, columns=["id"])
        _check(
            near["id"][0].as_py() == text["id"][0].as_py() == both["id"][0].as_py() == 9_999_999, "fresh rows are found"
        )
        _say("a new row is the best match by vector, by text and by both")
        writer.delete([9_999_999])
        _check(writer.search(text="lighthouse", k=3).num_rows == 0, "deleted rows are not found")
        _say("no search returns it after it is deleted")
    story.note("rows in the table", f"{table.count_rows()}")


def _maintain(story: _Story) -> None:
    story.begin("Compaction merges all rows into the Lance table; GC removes unneeded objects")
    table = story.table
    rows = table.count_rows()
    table.flush(force=True)
    report = table.compact()
    before = _objects(story.uri)
    gone = table.gc(grace_seconds=0)
    after = _objects(story.uri)
    found = table.verify()
    _check(found.ok, f"verify finds no problem: {[str(problem) for problem in found.problems]}")
    _check(table.count_rows() == rows, "compaction and GC change no row")
    _say(f"{report.generations} generations compacted, {len(gone.objects)} objects deleted, verify found no problem")
    story.note("objects in the log directories, before and after gc", f"{before} -> {after}")


def _open_with_pylance(story: _Story) -> None:
    story.begin("The same table, opened with plain pylance")
    rows = lance.dataset(story.uri).count_rows()
    _check(rows == story.table.count_rows(), "plain Lance reads every row after compaction")
    _say(f"lance.dataset(uri).count_rows() = {rows}")
    story.note("rows that plain pylance reads", f"{rows}")


def _summary(story: _Story) -> None:
    width = max(len(what) for what, _ in story.figures)
    print("\nSummary")
    for what, value in story.figures:
        print(f"   {what.ljust(width)}   {value}")
    print(
        "\nNext: README.md, docs/quickstart.md, .venv/bin/memwal --help, examples/, make bench (next to pylance's writer)"
    )


# ------------------------------------------------------------------------------------------------- the other processes


def _write(uri: str) -> int:
    """Put rows forever; print each id and the time at which it was durable."""
    with mw.open_table(uri).writer() as writer:
        number = 0
        while True:
            number += 1
            writer.put([_row(number, 1)])
            print(number, time.time_ns() // 1_000_000, flush=True)


def _count(uri: str) -> int:
    """Print the number of streamed rows that this process sees."""
    print(mw.open_table(uri).count_rows("revision >= 1000"), flush=True)
    return 0


_ROLES: dict[str, Callable[..., int]] = {"write": _write, "count": _count}


def _start(role: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, role, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 (this interpreter and this file)


def _read_line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    _check(line.endswith("\n"), "the other process runs")
    return line


def _row(number: int, revision: int) -> dict[str, Any]:
    angles = np.arange(1, _DIMENSION + 1) * (number + 1)
    topic = _TOPICS[number % len(_TOPICS)]
    return {"id": number, "title": f"the {topic} {number}", "revision": revision, "vector": np.cos(angles).tolist()}


def _objects(uri: str) -> int:
    return sum(path.is_file() for path in Path(uri, "_mem_wal").rglob("*"))


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Discard standard error: Spark's launcher writes to it at any log level."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


if __name__ == "__main__":
    sys.exit(main())
