"""The registry of writers in this process: found by table and shard, newest epoch first, kept alive by nobody."""

from __future__ import annotations

import gc
from pathlib import Path

from lance_memwal.memtable import live
from lance_memwal.store.location import resolve
from tests.kit.writers import SHARD, open_writer, rows


def key(root: Path) -> str:
    return resolve(str(root)).key


def test_a_writer_is_found_while_it_lives(tmp_path: Path) -> None:
    assert live.find(key(tmp_path), SHARD) is None
    writer = open_writer(tmp_path)
    assert live.find(key(tmp_path), SHARD) is writer
    assert live.all_of(key(tmp_path)) == [writer]
    assert live.find(key(tmp_path / "other"), SHARD) is None
    writer.close()
    assert live.find(key(tmp_path), SHARD) is None
    assert live.all_of(key(tmp_path)) == []


def test_of_several_writers_the_newest_epoch_is_found(tmp_path: Path) -> None:
    first = open_writer(tmp_path)
    second = open_writer(tmp_path)
    assert live.find(key(tmp_path), SHARD) is second
    second.abort()
    assert live.find(key(tmp_path), SHARD) is first
    first.abort()


def test_the_registry_keeps_no_writer_alive(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    del writer
    gc.collect()
    assert live.find(key(tmp_path), SHARD) is None
    open_writer(tmp_path).abort()
    assert live.count_of(key(tmp_path)) == 0


def test_what_a_registered_writer_shows_is_its_capture(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        found = live.find(key(tmp_path), SHARD)
        assert found is not None
        capture = found.capture()
        assert capture is not None
        assert (capture.shard_id, capture.epoch) == (SHARD, writer.epoch)
        assert capture.active.num_rows == 1
    assert writer.capture() is None


def test_the_same_table_is_the_same_key_however_it_is_spelled(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        spelled = resolve(f"{tmp_path}/../{tmp_path.name}/").key
        assert live.find(spelled, SHARD) is writer
