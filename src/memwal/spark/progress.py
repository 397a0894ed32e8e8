"""What streaming queries do, in logs and in numbers.

Owns `ProgressListener`. Invariant: it reads what Spark reports and touches no table; a report that it cannot read is
logged and never disturbs the query.

Called by: users, with `spark.streams.addListener(ProgressListener())`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["ProgressListener", "QueryStats"]

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class QueryStats:
    """Totals of one query run; `lag_entries` is how many WAL entries the feed has still to read."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    lag_entries: int = 0
    failed: str | None = None


class ProgressListener(StreamingQueryListener):
    """Counts rows, time and lag per query run, and logs a line per micro-batch."""

    def __init__(self) -> None:
        self.queries: dict[str, QueryStats] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """A run begins."""
        self.queries[str(event.runId)] = QueryStats()
        _LOG.info("query started [query=%s, run=%s]", event.id, event.runId)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A micro-batch ended."""
        progress = event.progress
        stats = self.queries.setdefault(str(progress.runId), QueryStats())
        stats.batches += 1
        stats.rows += progress.numInputRows
        stats.seconds += progress.batchDuration / 1000
        stats.lag_entries = sum(_lag(source) for source in progress.sources)
        _LOG.info(
            "micro-batch [query=%s, batch=%d, rows=%d, seconds=%.3f, lag=%d]",
            progress.id,
            progress.batchId,
            progress.numInputRows,
            progress.batchDuration / 1000,
            stats.lag_entries,
        )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing to do at this trigger."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A run ended."""
        stats = self.queries.setdefault(str(event.runId), QueryStats())
        stats.failed = event.exception
        _LOG.info("query ended [query=%s, rows=%d, failed=%s]", event.id, stats.rows, event.exception is not None)


def _lag(source: Any) -> int:
    """Entries between where the query is and where the logs end; 0 for sources that are no change feed."""
    try:
        latest, reached = json.loads(source.latestOffset)["shards"], json.loads(source.endOffset)["shards"]
        return sum(max(0, tip - reached.get(shard, 1)) for shard, tip in latest.items())
    except (TypeError, ValueError, KeyError, AttributeError):
        return 0
