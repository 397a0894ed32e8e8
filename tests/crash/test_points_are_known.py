"""Every named point of the engine is one at which processes are killed and stopped, or is left out by name."""

from __future__ import annotations

import re
from pathlib import Path

import lance_memwal
from tests.harness.kill_points import POINTS

# No process of the harness comes there: it has no Spark, and damages nothing that would be repaired.
ELSEWHERE = {"spark.after_shard", "repair.after_quarantine", "repair.before_index"}
# What is collected, of which a life has none: it remembers deletes for longer than it lives, tears nothing, stages nothing.
NEVER_COLLECTED = {"deletes", "torn", "staging"}


def test_every_point_is_in_the_list_of_the_harness_or_left_out_by_name() -> None:
    source = "\n".join(path.read_text() for path in Path(lance_memwal.__file__).parent.rglob("*.py"))
    reached = set(re.findall(r'\breach\("([a-z_.]+)"\)', source))
    collected = set(re.findall(r'CollectedObject\([^\n]*"([a-z]+)"\)', source)) | {"sstable"}
    reached |= {f"gc.before_{kind}" for kind in collected - NEVER_COLLECTED}
    assert {"gc.before_entry", "gc.before_rollup", "wal.before_put"} <= reached
    assert reached - ELSEWHERE == set(POINTS)
