"""memwal for Spark: sinks, source, change feed, jobs. `import memwal.spark as ms`."""

from memwal.spark.executor_mode import BatchReport, write_batch
from memwal.spark.jobs import CompactionMode, compact, flush, gc
from memwal.spark.merging import MergeBuilder, merge_into
from memwal.spark.progress import ProgressListener, QueryStats
from memwal.spark.session import register, session
from memwal.spark.streams import mark_streams
from memwal.spark.types import arrow_schema_for

__all__ = [
    "BatchReport",
    "CompactionMode",
    "MergeBuilder",
    "ProgressListener",
    "QueryStats",
    "arrow_schema_for",
    "compact",
    "flush",
    "gc",
    "merge_into",
    "register",
    "session",
    "write_batch",
]

mark_streams()
