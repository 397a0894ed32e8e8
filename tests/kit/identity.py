"""Tables that are removed, overwritten, restored and made anew under the hands of their writers."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable

import lance
import pyarrow as pa

import lance_memwal as mw

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), False, KEY), ("v", pa.string())])


def make(uri: str, *ids: int) -> mw.Table:
    data = pa.table({"id": list(ids), "v": ["base"] * len(ids)}, schema=SCHEMA)
    return mw.create_table(uri, data, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False})


def row(number: int, value: str = "x") -> list[dict[str, object]]:
    return [{"id": number, "v": value}]


def shown(table: mw.Table) -> list[int]:
    return sorted(table.scan().to_table()["id"].to_pylist())


def remove(uri: str) -> None:
    shutil.rmtree(uri)


def overwrite(uri: str) -> None:
    lance.write_dataset(pa.table({"id": [9], "v": ["new"]}, schema=SCHEMA), uri, mode="overwrite")


def make_anew(uri: str) -> None:
    shutil.rmtree(uri)
    make(uri)


def overwrite_and_enable(uri: str) -> None:
    overwrite(uri)
    mw.enable(uri, sharding=mw.Unsharded(), adopt_shards=True)


def restore_to_before_enable(uri: str) -> None:
    lance.dataset(uri, version=1).restore()


REPLACED: list[Callable[[str], None]] = [
    remove,
    overwrite,
    make_anew,
    overwrite_and_enable,
    restore_to_before_enable,
]


def in_another_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return done.stdout
