"""Lets Spark find `format("memwal")` by itself: it looks for `pyspark_*` modules with a `DefaultSource`."""

from memwal.spark.data_source import MemWalSource as DefaultSource

__all__ = ["DefaultSource"]
