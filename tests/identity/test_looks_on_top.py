"""A look at the table on top of another one, as a signal handler makes it: what was found stays found, and is true."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from tests.kit.identity import make, make_anew, row
from tests.kit.writers import in_thread


@contextmanager
def on_top_of_a_look(handler: Callable[[], Any]) -> Iterator[None]:
    """Calls `handler` in this thread, once, when a look has just read the newest version."""
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return ended if frame.f_code is BaseTable.refresh.__code__ else None

    def ended(frame: FrameType, event: str, arg: object) -> Any:
        if event == "return":
            sys.settrace(before)
            handler()
        return ended

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def compacted(table: mw.Table, number: int) -> None:
    with table.writer() as writer:
        writer.put(row(number))
    table.compact()


def test_a_table_that_was_given_up_is_not_taken_back(tmp_path: Path) -> None:
    table = make(str(tmp_path / "t"))
    base = BaseTable.open(table.location)
    assert base is not None
    watch = TableWatch(base)

    def handler() -> None:
        make_anew(table.uri)
        with pytest.raises(mw.TableReplacedError):
            watch.look()

    with on_top_of_a_look(handler), pytest.raises(mw.TableReplacedError):
        watch.look()
    assert watch.is_replaced


def test_a_look_that_read_an_older_version_takes_nothing_for_a_restore(tmp_path: Path) -> None:
    table = make(str(tmp_path / "t"))
    compacted(table, 1)
    base = BaseTable.open(table.location)
    assert base is not None
    watch = TableWatch(base)
    [shard] = table.shards()
    compacted(table, 2)

    def handler() -> None:
        in_thread(lambda: compacted(table, 3)).result()
        watch.look()

    with on_top_of_a_look(handler):
        assert watch.look().version > base.version
    assert not watch.is_replaced
    assert watch.mark_of(shard.shard_id) == 3
