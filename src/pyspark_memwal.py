"""Lets Spark find `format("memwal")` by itself: it looks for `pyspark_*` modules with a `DefaultSource`."""

from lance_memwal.spark.data_source import MemWalSource as DefaultSource

__all__ = ["DefaultSource"]
