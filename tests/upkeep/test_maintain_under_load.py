"""A table that is written all the time and maintained now and then stays as big, and as fast, as it was."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import lance
import pytest

from benchmarks.maintenance_load import Load, drawing, halves, make_table
from tests.harness.profile import profile, scaled


@pytest.mark.scaled
@pytest.mark.timeout(900)
def test_objects_versions_index_lag_and_read_cost_stay_flat(tmp_path: Path) -> None:
    rows = scaled(ci=2_000, prove=20_000)
    table = make_table(tmp_path / "t", rows)
    every, keep_for = scaled(ci=1.0, prove=5.0), scaled(ci=1.0, prove=30.0)
    load = Load(table, maintain_every=every, keep_for=keep_for, puts_per_second=30)
    moments = load.run(scaled(ci=10, prove=600))
    assert len(load.reports) >= scaled(ci=2, prove=50)
    assert sum(report.compaction.generations for report in load.reports) >= scaled(ci=2, prove=50)
    growth = {name: halves(moments, name) for name in ("objects", "versions", "get_ms", "search_ms")}
    for name in ("objects", "versions"):
        early, late = growth[name]
        assert late <= 1.5 * early + 40, growth
    assert max(moment.waiting_for_indexes for moment in moments) <= 30
    assert halves(moments, "waiting_for_indexes")[1] <= 8
    assert halves(moments, "uncompacted")[1] <= 16
    if profile() == "prove":  # ten seconds on a busy machine say nothing about time
        for name in ("get_ms", "search_ms"):
            early, late = growth[name]
            assert late <= 1.5 * early + 2, growth
    assert table.count_rows() == rows
    assert table.verify().ok
    assert table.settle(60, idle_seconds=0).converged
    assert lance.dataset(table.uri).count_rows() == rows
    ET.fromstring(drawing(moments))
