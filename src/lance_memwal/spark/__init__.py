"""lance-memwal for Spark: sinks, source, change feed, jobs. `import lance_memwal.spark as ms`."""

from lance_memwal.errors import need

need("pyspark", "spark", "lance_memwal.spark")

from lance_memwal.spark.executor_mode import BatchReport, write_batch
from lance_memwal.spark.face.load import face
from lance_memwal.spark.jobs import CompactionMode, compact, flush, gc, maintain
from lance_memwal.spark.merging import MergeBuilder, merge_into
from lance_memwal.spark.progress import ProgressListener, QueryStats
from lance_memwal.spark.searching import read, search
from lance_memwal.spark.session import register, session
from lance_memwal.spark.types import arrow_schema_for

__all__ = [
    "BatchReport",
    "CompactionMode",
    "MergeBuilder",
    "ProgressListener",
    "QueryStats",
    "arrow_schema_for",
    "compact",
    "face",
    "flush",
    "gc",
    "maintain",
    "merge_into",
    "read",
    "register",
    "search",
    "session",
    "write_batch",
]
