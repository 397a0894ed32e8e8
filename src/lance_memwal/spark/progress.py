"""What streaming queries do, in logs and in numbers.

Owns `ProgressListener`. Invariant: it reads what Spark and the sinks report and touches no table; a report that it cannot
read is logged and never disturbs the query. Sinks report to listeners on the driver's host.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from lance_memwal.spark import batch_reports

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class QueryStats:
    """Totals of one query run. `rows` came in; `rows_written` and `size_bytes` were added to memwal tables.

    `skipped_batches` are micro-batches that the table had already as a whole (a replay after a restart, say), and
    `skipped_shards` the appends that were left out because their shard had the batch, those of half-written batches
    included. `rejected_rows` were kept out by a condition or by the merge of the table. `lag_entries` is how many WAL entries
    the feed has still to read.
    """

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    lag_entries: int = 0
    rows_written: int = 0
    size_bytes: int = 0
    skipped_batches: int = 0
    skipped_shards: int = 0
    rejected_rows: int = 0
    failed: str | None = None


class ProgressListener(StreamingQueryListener):
    """Counts rows, bytes, time, lag and skipped batches per query run, and logs a line per micro-batch."""

    def __init__(self) -> None:
        self.queries: dict[str, QueryStats] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """A run begins."""
        self.queries[str(event.runId)] = QueryStats()
        batch_reports.announce(str(event.runId))
        _LOG.info("query started [query=%s, run=%s]", event.id, event.runId)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A micro-batch ended."""
        progress = event.progress
        stats = self.queries.setdefault(str(progress.runId), QueryStats())
        stats.batches += 1
        stats.rows += progress.numInputRows
        stats.seconds += progress.batchDuration / 1000
        stats.lag_entries = sum(_lag(source) for source in progress.sources)
        written = batch_reports.collect(str(progress.runId), progress.batchId) or batch_reports.BatchStats()
        stats.rows_written += written.rows
        stats.size_bytes += written.size_bytes
        stats.skipped_batches += written.is_skipped
        stats.skipped_shards += written.skipped_shards
        stats.rejected_rows += written.rejected_rows
        _LOG.info(
            "micro-batch [query=%s, batch=%d, rows=%d, bytes=%d, seconds=%.3f, lag=%d, shards=%d, skipped=%d]",
            progress.id,
            progress.batchId,
            progress.numInputRows,
            written.size_bytes,
            progress.batchDuration / 1000,
            stats.lag_entries,
            written.shards,
            written.skipped_shards,
        )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing to do at this trigger."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A run ended."""
        stats = self.queries.setdefault(str(event.runId), QueryStats())
        stats.failed = event.exception
        batch_reports.retire(str(event.runId))
        _LOG.info("query ended [query=%s, rows=%d, failed=%s]", event.id, stats.rows, event.exception is not None)


def _lag(source: Any) -> int:
    """Entries between where the query is and where the logs end; 0 for sources that are no change feed."""
    try:
        latest, reached = json.loads(source.latestOffset)["shards"], json.loads(source.endOffset)["shards"]
        return sum(max(0, tip - reached.get(shard, 1)) for shard, tip in latest.items())
    except (TypeError, ValueError, KeyError, AttributeError):
        return 0
