"""A Spark session that works without set-up, and the registration of the format.

Owns `session` and `register`. Invariant: settings that the user gives, here or in the environment, are never overridden; what
Spark hides is what they say, and storage options besides.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from typing import Any

from pyspark.sql import SparkSession

from lance_memwal.spark.data_source import ChangesSource, MemWalSource, PythonSource
from lance_memwal.spark.face.commands import FaceSource
from lance_memwal.spark.face.load import knows_format, load_face
from lance_memwal.spark.java import provide_java
from lance_memwal.spark.redaction import hide_credentials, settings_that_hide
from lance_memwal.spark.searching import search_function
from lance_memwal.spark.streams import mark_streams

__all__ = ["register", "session"]

_SEARCH = "spark.memwal.search"  # of which catalogs the search function of a session knows
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
    for name, value in {**_DEFAULTS, **conf, **settings_that_hide(conf)}.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lance is not fork-safe")  # Spark forks to start its JVM, and no more
        spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: Any) -> None:
    """Make the formats known to this session, hide storage options in its plans, let `readStream.format("memwal")` mean the
    change feed, and load the JVM face.

    Needed over Connect, for that shorthand, and for SQL; else an installed package is found by itself. `face` tells whether
    the JVM face could be loaded; everywhere else the pure Python source does the work.
    """
    hide_credentials(spark)
    mark_streams(type(spark.readStream))
    for source in (MemWalSource, ChangesSource, PythonSource, FaceSource):
        if not knows_format(spark, source.name()):
            spark.dataSource.register(source)
    _register_search(spark)
    load_face(spark)


def _register_search(spark: Any) -> None:
    """Make the search function known, and again only if there are other catalogs by now."""
    settings = settings_of(spark)
    catalogs = {name: value for name, value in sorted(settings.items()) if name.startswith("spark.sql.catalog.")}
    told = hashlib.sha256(repr(catalogs).encode()).hexdigest()
    if settings.get(_SEARCH) != told:
        spark.udtf.register("memwal_search", search_function(settings))
        spark.conf.set(_SEARCH, told)


def settings_of(spark: Any) -> dict[str, str]:
    """The settings of a session by name; of catalogs, those that were set before this call."""
    return dict(spark.conf.getAll)
