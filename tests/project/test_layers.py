"""The import-layer check finds what it says it finds, and the project passes it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check_layers = load()


def problems(tmp_path: Path, name: str, text: str) -> list[str]:
    """Seed one module beside a clean skeleton and return what the check says."""
    package = tmp_path / "src" / "memwal"
    for part in (
        "errors",
        "clock",
        "manifest",
        "wal",
        "writer/__init__",
        "scan/__init__",
        "store/paths",
        "table",
        "gc",
    ):
        (package / part).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{part}.py").write_text("")
    for init in ("", "store/", "format/", "spark/", "cli/", "testing/"):
        (package / init).mkdir(exist_ok=True)
        (package / init / "__init__.py").write_text("")
    file = package / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return [str(found) for found in check_layers.check(tmp_path / "src")]


def test_the_project_passes_its_own_layer_check() -> None:
    assert [str(found) for found in check_layers.check(ROOT / "src")] == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("manifest", "from lance_memwal.write import x\n", "imports point down only"),
        ("manifest", "import lance_memwal.write\n", "imports point down only"),
        ("manifest", "def f():\n    from lance_memwal import writer\n", "imports point down only"),
        ("manifest", "from . import writer\n", "imports point down only"),
        ("store/local", "from ..manifest import x\n", "imports point down only"),
        ("manifest", "import importlib\nimportlib.import_module('lance_memwal.table')\n", "imports point down only"),
        ("wal", "from lance_memwal import open_table\n", "imports point down only"),
        (
            "wal",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lance_memwal.table import T\n",
            "imports point down only",
        ),
        ("writer/put", "from lance_memwal.read import x\n", "do not import each other"),
        ("gc", "import lance_memwal.read\n", "do not import each other"),
        ("testing/kit", "from lance_memwal.spark import session\n", "do not import each other"),
        ("brand_new", "", "has no layer"),
        ("wal", "import lance_memwal.elsewhere\n", "has no layer"),
        ("format/entry", "from lance_memwal.store import port\n", "only store.paths is allowed"),
        ("format/entry", "import os\n", "it is pure"),
        ("wal", "import time\n", "come from clock.py"),
        ("wal", "def f():\n    import random\n", "come from clock.py"),
        ("wal", "from secrets import token_hex\n", "come from clock.py"),
        ("wal", "import uuid\nname = uuid.uuid4()\n", "uuid.uuid4 outside clock.py"),
        ("wal", "from uuid import uuid4\n", "uuid.uuid4 outside clock.py"),
        ("wal", "import threading\nthreading.Thread(target=print).start()\n", "threading.Thread outside clock.py"),
        ("wal", "from threading import Thread as T\nT(target=print)\n", "threading.Thread outside clock.py"),
        ("wal", "import datetime as d\nd.datetime.now()\n", "datetime.datetime.now outside clock.py"),
        ("wal", "from datetime import datetime\ndatetime.now()\n", "datetime.datetime.now outside clock.py"),
        ("wal", "from concurrent.futures import ThreadPoolExecutor\n", "EXECUTORS_ALLOWED"),
        ("table", "import pyspark.sql\n", "only spark may"),
        ("wal", "import obstore\n", "only store may"),
        ("wal", "path = '_mem_wal/x/wal'\n", "is spelled in store.paths only"),
        (
            "wal",
            "from lance_memwal.store.paths import MEM_WAL_DIR\npath = f'{MEM_WAL_DIR}/x'\n",
            "joined with MEM_WAL_DIR",
        ),
        ("wal", "from lance_memwal.store import paths\npath = paths.MEM_WAL_DIR + '/x'\n", "joined with MEM_WAL_DIR"),
        (
            "wal",
            "import os\nfrom lance_memwal.store import paths\nos.path.join('a', paths.MEM_WAL_DIR)\n",
            "joined with MEM_WAL_DIR",
        ),
        ("scan/utils", "", "says nothing"),
    ],
)
def test_a_seeded_violation_is_found(tmp_path: Path, name: str, text: str, expected: str) -> None:
    found = problems(tmp_path, name, text)
    assert len(found) >= 1
    assert all(expected in problem for problem in found), found
    assert all(problem.startswith(f"src/lance_memwal/{name}.py:") for problem in found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("writer/put", "from lance_memwal.log.manifest import x\nfrom lance_memwal.write import y\nfrom . import z\n"),
        ("wal", "from lance_memwal.log.manifest import x\n"),
        ("wal", "import threading, uuid\nlock = threading.Lock()\nshard = uuid.UUID(int=0)\n"),
        ("wal", '"""A module about _mem_wal and threads."""\n'),
        ("wal", "INDEX = '__lance_mem_wal'\n"),
        ("clock", "import time, random, secrets, threading\nthreading.Thread(target=print)\n"),
        ("format/entry", "from lance_memwal.store.paths import x\nfrom lance_memwal.store import paths\n"),
        ("gc", "from lance_memwal.upkeep.verify import x\n"),
        ("spark/sink", "import pyspark\nimport memwal as mw\nfrom lance_memwal.table import Table\n"),
        ("testing/kit", "import time, subprocess\nimport lance_memwal.table\n"),
        ("format/proto/thing_pb2", "import time\n" + "x = 1\n" * 600),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, name: str, text: str) -> None:
    assert problems(tmp_path, name, text) == []


def test_the_script_exits_with_one_and_names_the_line(tmp_path: Path) -> None:
    problems(tmp_path, "wal", "\n\nimport time\n")
    script = [sys.executable, str(ROOT / "tools" / "check_layers.py"), str(tmp_path / "src")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "src/lance_memwal/wal.py:3: " in done.stdout
    assert "1 violation\n" in done.stdout
