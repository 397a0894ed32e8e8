"""The command line: `memwal`, also `python -m memwal`.

Owns the list of commands and the exit status: 0 done, 1 failed, 2 used wrongly. An error is one line on standard error;
`--debug` shows where it came from.

Called by: the console script, `python -m memwal`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from memwal.cli import maintenance, reading, tables
from memwal.cli.output import error
from memwal.errors import MemWalError

__all__ = ["app", "main"]

app = typer.Typer(
    name="memwal",
    help="Small durable writes and fresh reads for Lance tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (
    maintenance.demo, tables.create, tables.enable, tables.put, tables.delete,
    reading.scan, reading.get, reading.search, reading.shards, reading.manifest, reading.stats,
    maintenance.flush, maintenance.compact, maintenance.gc, maintenance.verify, maintenance.repair, maintenance.bench,
):  # fmt: skip
    app.command()(_command)
app.add_typer(reading.wal, name="wal")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        status = app(given, standalone_mode=False, prog_name="memwal")
    except typer.Exit as done:
        return int(done.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except TyperException as problem:
        error(f"{problem.format_message()} (see: memwal {_command_of(given)}--help)")
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as problem:
        if debug:
            raise
        error(_explain(problem))
        return 1
    return int(status) if isinstance(status, int) else 0


def _command_of(arguments: Sequence[str]) -> str:
    return f"{arguments[0]} " if arguments and not arguments[0].startswith("-") else ""


def _explain(problem: Exception) -> str:
    if isinstance(problem, MemWalError):
        return str(problem)
    return f"unexpected {type(problem).__name__}: {problem} (run with --debug to see where)"
