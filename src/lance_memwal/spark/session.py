"""A Spark session that works without set-up, and the registration of the format.

Owns `session` and `register`. Invariant: settings that the user gives, here or in the environment, are never overridden.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from lance_memwal.spark.data_source import ChangesSource, MemWalSource, PythonSource
from lance_memwal.spark.face.commands import FaceSource
from lance_memwal.spark.face.load import load_face
from lance_memwal.spark.java import provide_java
from lance_memwal.spark.searching import search_function
from lance_memwal.spark.streams import mark_streams

__all__ = ["register", "session"]

_DEFAULTS = {
    "spark.app.name": "memwal",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def session(master: str = "local[2]", **conf: Any) -> SparkSession:
    """A plain `SparkSession` with the format registered; finds a Java runtime, or provides one.

    `conf` holds Spark settings by their own names: `session("local[4]", **{"spark.driver.memory": "4g"})`. A session
    that is active already is returned with the settings that can still change.
    """
    provide_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master)
    for name, value in {**_DEFAULTS, **conf}.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: Any) -> None:
    """Make the formats known to this session, let `readStream.format("memwal")` mean the change feed, and load the JVM face.

    Needed over Connect, for that shorthand, and for SQL; else an installed package is found by itself. `face` tells whether
    the JVM face could be loaded; everywhere else the pure Python source does the work.
    """
    mark_streams(type(spark.readStream))
    for source in (MemWalSource, ChangesSource, PythonSource, FaceSource):
        spark.dataSource.register(source)
    spark.udtf.register("memwal_search", search_function(settings_of(spark)))
    load_face(spark)


def settings_of(spark: Any) -> dict[str, str]:
    """The settings of a session by name; of catalogs, those that were set before this call."""
    return dict(spark.conf.getAll)
