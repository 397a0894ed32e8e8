"""On object stores there is no directory whose absence tells: a writer notices when it looks, once a minute."""

from __future__ import annotations

import pytest

import lance_memwal as mw
from lance_memwal.store.location import resolve
from lance_memwal.testing.clocks import SkippingClock
from tests.kit.identity import SCHEMA, row, shown

pytestmark = pytest.mark.xdist_group("services")


def test_writer_of_a_recreated_table_stops_after_a_minute(s3_table: tuple[str, dict[str, str]]) -> None:
    uri, options = s3_table
    clock = SkippingClock()
    shard_id = mw.shard_id_for(mw.Unsharded())

    def make() -> mw.Table:
        return mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Unsharded(), storage_options=options)

    make()
    old = mw.ShardWriter.open(uri, clock=clock, shard_id=shard_id, storage_options=options)
    old.put(row(1))
    store = resolve(uri, options).store
    for item in store.list(""):
        store.delete(item.path)
    old.put(row(2))  # nothing tells: acknowledged, and gone with its table
    for item in store.list(""):
        store.delete(item.path)
    table = make()
    old.put(row(3))  # position 3 of the new log
    with table.shard_writer() as new:
        for number in (100, 101, 102, 103):
            new.put(row(number))
        clock.sleep(61)
        with pytest.raises(mw.TableReplacedError):
            old.put(row(4))
        with pytest.raises(mw.TableReplacedError):
            old.close()
    assert shown(table) == [100, 101, 102, 103]
    assert table.verify().problems == []
