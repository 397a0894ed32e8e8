"""The command that owns a table for others: serve.

Owns no engine logic: it attends to the shards of one shared writer until it is told to end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Annotated

import typer

from lance_memwal.cli.options import Json, Options, Uri, open_for, split_names
from lance_memwal.cli.output import note, show
from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.serve.endpoint import CERT_VARIABLE, HOST_VARIABLE, KEY_VARIABLE, PORT_VARIABLE
from lance_memwal.table import Table
from lance_memwal.write.open_shards import DEFAULT_OPEN_SHARDS


def serve(
    uri: Uri,
    shards: Annotated[
        str | None, typer.Option(help="Only these shards, separated by commas.", show_default="all")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Listen for other hosts, under this name or address. Needs TLS, and LANCE_MEMWAL_TOKEN.",
            envvar=HOST_VARIABLE,
            show_default="this host only",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port.", envvar=PORT_VARIABLE, min=0, max=65535, show_default="any")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="With --host: its certificate (a PEM file).", envvar=CERT_VARIABLE)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="With --host: the key of the certificate (a PEM file).", envvar=KEY_VARIABLE)
    ] = None,
    fsync: Annotated[bool, typer.Option(help="Survive power loss (local paths).")] = True,
    every_seconds: Annotated[
        float, typer.Option(help="How often to look for shards that nobody owns.", min=0.05)
    ] = 1.0,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Own the shards of a table, and write for all processes that share it.

    In Python those are the writers of table.writer(shared=True), and the verbs of a table.
    Shards that another process owns stay with it until it is gone; a second daemon stands by. SIGTERM or Ctrl-C ends it:
    everything is flushed.
    """
    given = {HOST_VARIABLE: host, PORT_VARIABLE: port, CERT_VARIABLE: tls_cert, KEY_VARIABLE: tls_key}
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    table, ended = open_for(uri, storage_option), threading.Event()
    named = _named(table, split_names(shards))

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        ended.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, end)
    most = max(DEFAULT_OPEN_SHARDS, len(named or _shards_of(table)))
    with table.writer(shared=True, fsync=fsync, max_open_shards=most) as writer:
        before: tuple[set[str], str] | None = None
        while not ended.is_set():
            trouble = ""
            try:
                writer.attend(named or _shards_of(table))
            except InvalidInputError:
                raise
            except MemWalError as error:  # it may pass: whoever serves goes on
                trouble = str(error)
            owned = writer.owned_shards
            if before is None or owned != before[0]:
                show({"table": table.uri, "serves": sorted(owned)}, as_json=json)
                sys.stdout.flush()
            if trouble and (before is None or trouble != before[1]):
                note(trouble)
            before = owned, trouble
            ended.wait(every_seconds)


def _named(table: Table, shards: list[str] | None) -> list[str] | None:
    """The shards that were asked for; `InvalidInputError` if the table has no such shard."""
    known = _shards_of(table)
    unknown = [name for name in shards or () if name not in known]
    if unknown or shards == []:
        raise InvalidInputError(f"--shards: the table has no shard {', '.join(unknown)}; it has {', '.join(known)}")
    return shards


def _shards_of(table: Table) -> list[str]:
    """The shards that the table has by its sharding, or, where values make them, those on storage."""
    return table.sharding.shard_ids() or [info.shard_id for info in table.shards()]
