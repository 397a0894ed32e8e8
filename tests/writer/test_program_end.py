"""The end of a program that did not close its writers: its own exit status, at once, and nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lance_memwal as mw
from tests.harness.profile import scaled

HEAD = """
import atexit, sys, threading, time
import pyarrow as pa
import lance_memwal as mw
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])
TABLE = mw.create_table(sys.argv[1], SCHEMA, primary_key=["id"], sharding=SHARDING)
BATCH = pa.record_batch({"id": pa.array(range(1000), pa.int64()), "v": ["x" * 200] * 1000})
SMALL = {"fsync": False, "max_memtable_rows": 2000}
"""
FILL = "\nfor _ in range(12):\n    w.put(BATCH)\n"
ONE, FOUR = "SHARDING = mw.Unsharded()", "SHARDING = mw.Bucket('id', 4)"

ENDS: dict[str, tuple[str, str, int]] = {
    "normal": (ONE, "w = TABLE.shard_writer(**SMALL)" + FILL, 0),
    "SystemExit": (ONE, "w = TABLE.writer(**SMALL)" + FILL + "raise SystemExit(3)", 3),
    "exception": (FOUR, "w = TABLE.writer(**SMALL)" + FILL + "raise ValueError('mine')", 1),
    "many writers": (
        ONE,
        "others = [mw.create_table(f'{sys.argv[1]}-{n}', SCHEMA, primary_key=['id'], sharding=SHARDING) for n in range(5)]\n"
        "ws = [t.writer(**SMALL) for t in [TABLE, *others]]\n"
        "for w in ws:\n    for _ in range(4):\n        w.put(BATCH)\n"
        "sys.exit(4)",
        4,
    ),
    "compaction": (
        ONE,
        "policy = mw.CompactionPolicy(max_generations=1, check_interval_seconds=0.01)\n"
        "w = TABLE.writer(compaction=policy, **SMALL)" + FILL + "sys.exit(5)",
        5,
    ),
    "daemon threads that put": (
        FOUR,
        "w = TABLE.writer(**SMALL)\n"
        "def run():\n    while True:\n        w.put(BATCH)\n"
        "for _ in range(3):\n    threading.Thread(target=run, daemon=True).start()\n"
        "time.sleep(0.3)\nsys.exit(6)",
        6,
    ),
    "not durable": (
        ONE,
        "w = TABLE.shard_writer(durable_write=False, max_wal_flush_interval_ms=5, **SMALL)" + FILL + "sys.exit(7)",
        7,
    ),
    "closed by a hook": (ONE, "w = TABLE.shard_writer(**SMALL)\natexit.register(w.close)" + FILL, 0),
    "closed by a hook that came first": (
        ONE,
        "atexit.register(lambda: w.close())\nw = TABLE.shard_writer(durable_write=False, **SMALL)" + FILL,
        0,
    ),
    "SIGTERM": (
        FOUR,
        "import os, signal\nw = TABLE.writer(**SMALL)\n"
        "def stop(*_):\n    w.close()\n    sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "while True:\n    w.put(BATCH)",
        9,
    ),
    "in a with block": (ONE, "with TABLE.writer(**SMALL) as w:\n    for _ in range(12):\n        w.put(BATCH)", 0),
}


def script(name: str) -> str:
    sharding, body, _ = ENDS[name]
    return "import lance_memwal as mw\n" + sharding + HEAD + body


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Path, int, str]]]:
    """Every program, some at once."""
    root, done = tmp_path_factory.mktemp("ends"), {name: [] for name in ENDS}  # type: ignore[var-annotated]
    for run in range(scaled(ci=1, prove=8)):
        waiting = [(name, root / f"{number}-{run}") for number, name in enumerate(ENDS)]
        while waiting:
            pair, waiting = waiting[:3], waiting[3:]
            programs = [
                (
                    name,
                    place,
                    subprocess.Popen([sys.executable, "-c", script(name), str(place)], stderr=subprocess.PIPE),
                )
                for name, place in pair
            ]
            for name, place, program in programs:
                _, errors = program.communicate(timeout=60)
                done[name].append((place, program.returncode, errors.decode()))
    return done


@pytest.mark.repro("writer-08", "writer-08b")
@pytest.mark.scaled
@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_with_its_own_status(ended: dict[str, list[tuple[Path, int, str]]], name: str) -> None:
    for place, status, errors in ended[name]:
        assert status == ENDS[name][2], errors
        assert errors == "" or name == "exception", "an end makes no noise"
        assert "Fatal" not in errors
        if name != "not durable":
            assert mw.open_table(str(place)).count_rows() == 1000
    if "hook" in name or "with" in name or name == "SIGTERM":
        assert mw.open_table(str(place)).count_rows(consistency="flushed") == 1000
