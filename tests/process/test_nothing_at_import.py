"""Importing the package changes nothing: no environment variable, hook, thread or handler of ours."""

from __future__ import annotations

import subprocess
import sys

_IMPORT = """
import atexit, logging, os, sys, threading
import lance, pyarrow, numpy, obstore  # what others do is theirs
before = dict(os.environ)
calls = []

def watched(name, real):
    def call(*args, **options):
        if sys._getframe(1).f_globals.get("__name__", "").startswith("lance_memwal"):
            calls.append(name)
        return real(*args, **options)
    return call

os.register_at_fork = watched("fork", os.register_at_fork)
atexit.register = watched("exit", atexit.register)
threading.Thread.start = watched("thread", threading.Thread.start)
import lance_memwal as mw
import lance_memwal.testing, lance_memwal.store.cloud
print(calls, dict(os.environ) == before, logging.getLogger("lance_memwal").handlers)
mw.create_table("memory://t", pyarrow.schema([("id", pyarrow.int64())]), primary_key="id", sharding=mw.Unsharded())
print(sorted(set(calls)))
"""


def test_importing_the_package_has_no_effect_and_the_first_use_has_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[] True []", "['exit', 'fork']"]
    assert done.stderr == ""
