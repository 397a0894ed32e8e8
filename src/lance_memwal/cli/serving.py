"""The command that owns a table for others: serve.

Owns no engine logic: it attends to the shards of one shared writer until it is told to end.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Annotated

import typer

from lance_memwal.cli.options import Json, Options, Uri, open_for
from lance_memwal.cli.output import show
from lance_memwal.table import Table

__all__ = ["serve"]


def serve(
    uri: Uri,
    fsync: Annotated[bool, typer.Option(help="Survive power loss (local paths).")] = True,
    every_seconds: Annotated[
        float, typer.Option(help="How often to look for shards that nobody owns.", min=0.05)
    ] = 1.0,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Own the shards of a table, and write for all processes that share it (table.writer(shared=True)).

    Shards that another process owns stay with it until it is gone. SIGTERM or Ctrl-C ends it: everything is flushed.
    """
    table, ended = open_for(uri, storage_option), threading.Event()

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        ended.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, end)
    with table.writer(shared=True, fsync=fsync) as writer:
        before: set[str] | None = None
        while not ended.is_set():
            owned = writer.attend(_shards_of(table))
            if owned != before:
                show({"table": table.uri, "serves": sorted(owned)}, as_json=json)
                before = owned
            ended.wait(every_seconds)


def _shards_of(table: Table) -> list[str]:
    """The shards that the table has by its sharding, or, where values make them, those on storage."""
    return table.sharding.shard_ids() or [info.shard_id for info in table.shards()]
