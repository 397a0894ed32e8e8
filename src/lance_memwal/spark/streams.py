"""`spark.readStream.format("memwal")` means the change feed.

Owns `mark_streams`. Spark asks a source for its columns without saying whether a stream or a batch will read it, and the
feed has three columns more than the table. So the stream reader adds the option `changeFeed` when the format is named.
Where this package was not imported, the feed says that the option is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["mark_streams"]

_MARK = "_memwal_marked"


def mark_streams(reader: type | None = None) -> None:
    """Let stream readers of this class (default: Spark's own) tell the source that a stream reads it. Idempotent."""
    chosen: Any = DataStreamReader if reader is None else reader
    if not hasattr(chosen.format, _MARK):
        chosen.format = _marking(chosen.format)


def _marking(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def choose(self: Any, source: str) -> Any:
        chosen = plain(self, source)
        return chosen.option("changeFeed", "true") if source.lower() == "memwal" else chosen

    setattr(choose, _MARK, True)
    return choose
