"""Lets Spark find `format("memwal_face")` by itself: it looks for `pyspark_*` modules with a `DefaultSource`."""

from lance_memwal.spark.face.commands import FaceSource as DefaultSource

__all__ = ["DefaultSource"]
