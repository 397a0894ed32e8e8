"""A roll-up keeps nothing that was read badly: it says what is damaged, and the next one is whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import newest_manifests
from lance_memwal.process.cache import CACHE
from lance_memwal.sstable.rolling import roll_up
from lance_memwal.store.location import resolve
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])


def roll(table: Path, script: FaultScript) -> None:
    CACHE.clear()
    clean = resolve(str(table))
    (manifest,) = newest_manifests(clean)
    roll_up(resolve(str(table), wrap=script.wrap), manifest, BaseTable.need(clean).columns, few_generations=0)


def test_a_manifest_that_came_back_short_is_not_kept_in_a_roll_up(tmp_path: Path) -> None:
    made = mw.create_table(str(tmp_path / "made"), _SCHEMA, primary_key="id")
    with made.writer(compaction=None) as writer:
        for key in range(8):
            writer.put([{"id": key, "value": key}])
            writer.flush()
    recorded = FaultScript()
    roll(shutil.copytree(tmp_path / "made", tmp_path / "recorded"), recorded)
    read = [call.index for call in recorded.calls if call.kind == "get" and "/_versions/" in call.path]
    assert read
    for index in (read[0], read[-1]):
        table = shutil.copytree(tmp_path / "made", tmp_path / str(index))
        with pytest.raises(mw.CorruptDataError, match="manifest"):
            roll(table, FaultScript(FaultPlan(at={index: FaultKind.SHORT_READ})))
        roll(table, FaultScript())
        assert mw.open_table(str(table)).verify().problems == []
