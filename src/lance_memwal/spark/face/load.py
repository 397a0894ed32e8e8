"""The JVM face: compiled by Spark's own compiler, once per version of Spark, and loaded into a running session.

Owns `load_face` and `face`, the way to the JVM of a session, and the cache of jars. Invariants:

1. A session in which the face cannot be loaded works without it, with the pure Python source; a log line says so once.
2. Versions of Spark with which the face was not tried do not get it: it stands on classes that Spark may change.
3. The setting `spark.memwal.face=off` keeps it out of a session that has not loaded it.
4. A jar is named by the version of Spark and the digest of the sources: one of other sources is never loaded. It appears whole
   or not at all (written aside, renamed), in a directory that only this user can write to.
5. Nothing is downloaded, and no compiler is needed except the one that every Spark has.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyspark
from pyspark.sql import SparkSession

from lance_memwal.errors import MemWalError, UnavailableError

_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_SOURCE = "io.memwal.spark.MemWalSource\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes
_JAVA = 8  # static methods of interfaces need it, and more the compiler does not know
Compile = Callable[[list[Path], Path], None]


def sources() -> list[Path]:
    """The Java files of the face."""
    return sorted(Path(__file__).parent.glob("*.java"))


def jar_for(spark_version: str, compile_to: Compile) -> Path:
    """The jar for this version of Spark; `compile_to` makes classes of sources where it is not there yet."""
    jar = _jar_path(spark_version)
    if jar.exists():
        return jar
    with tempfile.TemporaryDirectory(prefix="memwal-face-") as directory:
        classes = Path(directory)
        compile_to(sources(), classes)
        _put(jar, classes)
    return jar


def cached_jar(spark_version: str) -> Path | None:
    """The jar for this version of Spark, if it was made before."""
    jar = _jar_path(spark_version)
    return jar if jar.exists() else None


def _put(jar: Path, classes: Path) -> None:
    with _aside(jar) as file, zipfile.ZipFile(file, "w") as made:
        for path in sorted(classes.rglob("*.class")):
            made.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix(), _EPOCH), path.read_bytes())
        made.writestr(zipfile.ZipInfo(_SERVICE, _EPOCH), _SOURCE)


@contextmanager
def _aside(path: Path) -> Iterator[Any]:
    """A new file that becomes `path` when it is complete."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _jar_path(spark_version: str) -> Path:
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return _directory() / f"memwal-face-{spark_version}-{digest.hexdigest()[:32]}.jar"


def _directory() -> Path:
    """The cache; `UnavailableError` if there is no place that is ours alone."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(base, "lance-memwal")
    try:
        path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise UnavailableError(f"there is no cache directory for the classes of Spark: {error}") from error
    others = stat.S_IWGRP | stat.S_IWOTH
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & others:
        raise UnavailableError(f"others may write to {path}: it is not used for classes of Spark")
    return path


def compiler_of(jvm: Any, gateway: Any) -> Compile:
    """Spark's own compiler (Janino), in a running JVM."""

    def compile_to(given: list[Path], directory: Path) -> None:
        compiler = jvm.org.codehaus.janino.CompilerFactory().newCompiler()
        compiler.setTargetVersion(_JAVA)
        compiler.setDestinationDirectory(jvm.java.io.File(str(directory)), False)
        compiler.setClassPath(_files(jvm, gateway, _class_path(jvm)))
        compiler.compile(_files(jvm, gateway, [str(path) for path in given]))

    return compile_to


def _class_path(jvm: Any) -> list[str]:
    """The jars that the JVM itself runs with."""
    found: list[str] = []
    for item in str(jvm.java.lang.System.getProperty("java.class.path")).split(os.pathsep):
        path = Path(item)
        found += sorted(str(jar) for jar in path.parent.glob("*.jar")) if path.name == "*" else [item]
    return found


def _files(jvm: Any, gateway: Any, names: list[str]) -> Any:
    array = gateway.new_array(jvm.java.io.File, len(names))
    for number, name in enumerate(names):
        array[number] = jvm.java.io.File(name)
    return array


# --------------------------------------------------------------------------------------------------------------- load


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
