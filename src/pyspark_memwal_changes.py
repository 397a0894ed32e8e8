"""Lets Spark find `format("memwal_changes")` by itself: it looks for `pyspark_*` modules with a `DefaultSource`."""

from lance_memwal.spark.data_source import ChangesSource as DefaultSource

__all__ = ["DefaultSource"]
