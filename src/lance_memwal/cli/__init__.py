"""The command line: `memwal`, also `python -m lance_memwal`.

Owns the list of commands and the exit status: 0 done, 1 failed, 2 used wrongly. An error is one line on standard error;
`--debug` shows where it came from.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

import lance_memwal
from lance_memwal.cli import (
    exporting,
    inspecting,
    maintenance,
    page,
    reading,
    tables,
    watching,
)
from lance_memwal.cli.output import error
from lance_memwal.errors import CorruptDataError, MemWalError, UnavailableError

__all__ = ["app", "main"]

app = typer.Typer(
    name="memwal",
    help="Small durable writes and fresh reads for Lance tables.",
    epilog="Errors are one line; --debug, anywhere, shows where they came from. Exit status: 0 done, 1 failed, 2 used wrongly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_TYPED = {"ignore_unknown_options": True}  # keys may be negative numbers
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Make and fill": (tables.create, tables.enable, tables.put, tables.update, tables.delete),
    "Read": (reading.scan, reading.head, reading.get, reading.search, reading.diff, reading.snapshot),
    "Follow": (reading.changes, reading.consumers),
    "Look inside": (
        inspecting.tables,
        inspecting.schema,
        inspecting.shards,
        inspecting.stats,
        watching.top,
        page.ui,
        exporting.exporter,
        inspecting.manifest,
        inspecting.check_store,
    ),
    "Maintain": (
        maintenance.maintain,
        maintenance.flush,
        maintenance.compact,
        maintenance.gc,
        maintenance.verify,
        maintenance.repair,
    ),
    "Try": (inspecting.demo, inspecting.bench),
}
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        _typed = _TYPED if _command in (reading.get, tables.delete) else None
        app.command(rich_help_panel=_panel, context_settings=_typed)(_command)
_GROUPS = {"wal": (inspecting.wal, "Look inside"), "checkpoints": (reading.checkpoints, "Maintain")}
for _name, (_group, _panel) in _GROUPS.items():
    app.add_typer(_group, name=_name, rich_help_panel=_panel)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"memwal {lance_memwal.__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        status = app(given, standalone_mode=False, prog_name="memwal")
        sys.stdout.flush()
    except typer.Exit as done:
        return int(done.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except TyperException as problem:
        if text := problem.format_message():  # empty where help was printed instead
            commands = getattr(typer.main.get_command(app), "commands", {})
            command = _command_of(given, commands)
            error(f"{text.replace('Value error, ', '')} (see: memwal {command}--help)")
        return 2
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return 0  # whoever read our output has seen enough
    except Exception as problem:
        if debug:
            raise
        error(_explain(problem))
        return 1
    return int(status) if isinstance(status, int) else 0


def _command_of(arguments: Sequence[str], known: Collection[str]) -> str:
    """The command that was meant, for a hint; nothing where there is no such command."""
    named = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments))
    if not named or named[0] not in known:
        return ""
    return "".join(f"{name} " for name in (named[:2] if named[0] in _GROUPS else named[:1]))


def _explain(problem: Exception) -> str:
    """One line: what went wrong, what to do, and what was reached before."""
    while isinstance(problem, UnavailableError) and isinstance(problem.__cause__, UnavailableError):
        notes, problem = getattr(problem, "__notes__", []), problem.__cause__  # what the last attempt met
        for text in notes:
            problem.add_note(text)
    if isinstance(problem, MemWalError):
        line = (
            f"{problem}; check the table with memwal verify" if isinstance(problem, CorruptDataError) else str(problem)
        )
    else:
        line = f"unexpected {type(problem).__name__}: {problem} (run with --debug to see where)"
    return "; ".join([line, *getattr(problem, "__notes__", [])])
