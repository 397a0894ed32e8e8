"""memwal for Spark: sinks, source, change feed, jobs. `import memwal.spark as ms`."""

from memwal.spark.session import register, session
from memwal.spark.streams import mark_streams

__all__ = ["register", "session"]

mark_streams()
