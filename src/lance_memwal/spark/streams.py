"""`spark.readStream.format("memwal")` means the change feed, in sessions that were registered.

Owns `mark_streams`. Spark asks a source for its columns without saying whether a stream or a batch will read it, and the
feed has three columns more than the table. So the stream reader of a registered session adds the option `changeFeed` when
the format is named. Everywhere else the feed has a name of its own, `memwal_changes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["mark_streams"]

_MARK = "_memwal_marked"


def mark_streams(reader: Any) -> None:
    """Let stream readers of this class tell the source that a stream reads it. Idempotent."""
    if not hasattr(reader.format, _MARK):
        reader.format = _marking(reader.format)


def _marking(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def choose(self: Any, source: str) -> Any:
        chosen = plain(self, source)
        return chosen.option("changeFeed", "true") if source.lower() == "memwal" else chosen

    setattr(choose, _MARK, True)
    return choose
