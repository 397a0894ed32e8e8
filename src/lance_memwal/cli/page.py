"""The command that shows a table in a browser: ui.

Owns no engine logic: it serves the page of `lance_memwal.ui` until it is told to end.
"""

from __future__ import annotations

import sys
import webbrowser
from typing import Annotated

import typer

from lance_memwal.cli.options import Json, Options, Uri, open_for
from lance_memwal.cli.output import note, print_json
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import need
from lance_memwal.ui.gate import REACHED_BY_OTHERS, bind, is_loopback

_TOKEN_BYTES = 16


def ui(
    uri: Uri,
    port: Annotated[int, typer.Option(help="The port; 0: any that is free.", min=0, max=65535)] = 8470,
    host: Annotated[
        str, typer.Option(help="The address to listen at. Another than this machine's own is not encrypted.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--open", help="Open the link in a browser; whoever lists processes here sees it then.")
    ] = False,
    every_seconds: Annotated[
        float, typer.Option(help="How often an open page looks at the table, at most.", min=0.1)
    ] = 2.0,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Show a table in a web page: its tiers, live rates, queries and their plans, logs and manifests; until Ctrl-C.

    The page only reads, and nothing is looked at while no page is open. It listens on this machine alone, and only the link
    that is printed here opens it: the token in it is new each time.
    """
    need("starlette", "ui", "the web page")
    need("uvicorn", "ui", "the web page")
    from lance_memwal.ui.running import link_of, serve

    table, token = open_for(uri, storage_option), SYSTEM_CLOCK.token_hex(_TOKEN_BYTES)
    with bind(host, port) as listening:
        link = link_of(host, listening.getsockname()[1], token)

        def told() -> None:
            if not is_loopback(host):
                note(REACHED_BY_OTHERS)
            print_json({"serves": link}) if json else note(f"{table.uri} is at {link}; stop with Ctrl-C")
            sys.stdout.flush()
            if browser:
                webbrowser.open(link)

        serve(table, listening, host=host, token=token, every_seconds=every_seconds, started=told)
