"""The JVM face as a jar: compiled from the sources of this directory by Spark's own compiler, once per version of Spark.

Owns the cache of jars. Invariants:

1. A jar is named by the version of Spark and the digest of the sources: one of other sources is never loaded.
2. It appears whole or not at all (written aside, renamed), in a directory that only this user can write to.
3. Nothing is downloaded, and no compiler is needed beside the one that every Spark has.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lance_memwal.errors import UnavailableError

__all__ = ["cached_jar", "compiler_of", "jar_for"]

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
