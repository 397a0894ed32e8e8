"""Lets Spark find `format("memwal_py")` by itself: it looks for `pyspark_*` modules with a `DefaultSource`."""

from lance_memwal.spark.data_source import PythonSource as DefaultSource

__all__ = ["DefaultSource"]
