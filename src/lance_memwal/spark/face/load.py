"""The JVM face in a running session: whether it can be, and is.

Owns `load_face` and `face`, and the way to the JVM of a session. Invariants:

1. A session in which the face cannot be loaded works without it, with the pure Python source; a log line says so once.
2. Versions of Spark with which the face was not tried do not get it: it stands on classes that Spark may change.
3. The setting `spark.memwal.face=off` keeps it out of a session that has not loaded it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyspark
from pyspark.sql import SparkSession

from lance_memwal.errors import MemWalError
from lance_memwal.spark.face.build import cached_jar, compiler_of, jar_for

__all__ = ["face", "knows_format", "load_face"]

_LOG = logging.getLogger(__name__)
_TRIED = ("4.3.",)
_SETTING = "spark.memwal.face"
_LOADED = "spark.memwal.face.loaded"
_ROOT_LOADER = "org.apache.spark.util.MutableURLClassLoader"
_STOP_SECONDS = 60
_told: set[str] = set()


def face(spark: Any) -> Literal["jvm", "python"]:
    """Which side answers `format("memwal")` in this session: the JVM face, or the pure Python source."""
    return "jvm" if spark.conf.get(_LOADED, "false") == "true" else "python"


def knows_format(spark: Any, name: str) -> bool:
    """Whether Spark knows this format, from an installed package or an earlier call: it warns of those that come again."""
    if not isinstance(spark, SparkSession):
        return False  # a server does not tell
    session: Any = spark._jsparkSession
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def load_face(spark: Any) -> None:
    """Load the JVM face into this session, if that is possible and wanted."""
    if face(spark) == "jvm" or spark.conf.get(_SETTING, "auto") == "off":
        return
    if not str(spark.version).startswith(_TRIED):
        _tell(f"it was not tried with Spark {spark.version}")
        return
    try:
        if isinstance(spark, SparkSession):
            _load_here(spark)
        elif not _load_remote(spark):
            return
    except Exception as error:  # whatever it is: the pure Python source does the work
        _tell(str(error) if isinstance(error, MemWalError) else f"{type(error).__name__}: {error}")
        return
    spark.conf.set(_LOADED, "true")


def _load_here(spark: Any) -> None:
    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    jar = jar_for(spark.version, compiler_of(jvm, gateway))
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    while loader is not None and loader.getClass().getName() != _ROOT_LOADER:
        loader = loader.getParent()
    if loader is None:
        raise LookupError("the JVM has no class loader that takes jars")
    loader.addURL(_file(jvm, jar).toURI().toURL())  # for every thread of the driver
    context._jsc.addJar(str(jar))  # for the executors


def _file(jvm: Any, path: Path) -> Any:
    return jvm.java.io.File(str(path))


def _load_remote(spark: Any) -> bool:
    """Send the jar to the server of a Connect session; a client without the jars of Spark can only send one that is there."""
    jar = cached_jar(spark.version)
    if jar is None and pyspark.__version__ == spark.version and Path(pyspark.__file__).with_name("jars").is_dir():
        with _jvm_apart() as gateway:
            jar = jar_for(spark.version, compiler_of(gateway.jvm, gateway))
    if jar is None:
        _tell("this client cannot compile it, and no session of this user has")
        return False
    spark.addArtifact(str(jar))
    return True


@contextmanager
def _jvm_apart() -> Iterator[Any]:
    """A JVM with the jars of Spark and nothing in it, for as long as it is needed."""
    from pyspark import java_gateway

    launch: Any = java_gateway.launch_gateway
    gateway = launch()
    try:
        yield gateway
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_STOP_SECONDS)


def _tell(reason: str) -> None:
    if reason not in _told:
        _told.add(reason)
        _LOG.warning("Spark works with the pure Python source: the JVM face is not loaded, since %s", reason)
