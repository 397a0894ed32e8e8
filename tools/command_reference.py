"""The commands of `memwal` and their options, as Markdown, from the source.

Owns the form of the reference of the command line. Options that every command has are not repeated; the page explains them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from lance_memwal.cli import app

EVERYWHERE = frozenset({"storage_option", "json", "uri"})


def commands(group: Any, before: str = "memwal") -> Iterator[tuple[str, str, Any]]:
    """Every command below a group: its panel, its full name, the command."""
    for name, command in group.commands.items():
        full = f"{before} {name}"
        if hasattr(command, "commands"):
            yield from (
                (command.rich_help_panel or panel, inner, found) for panel, inner, found in commands(command, full)
            )
        else:
            yield command.rich_help_panel or "", full, command


def usage(name: str, command: Any) -> str:
    """The command with its arguments."""
    arguments = [p for p in command.params if p.param_type_name == "argument" and not p.hidden]
    shown = [(p.name if p.required else f"[{p.name}]") + ("..." if p.nargs == -1 else "") for p in arguments]
    return " ".join([name, *(text.upper() for text in shown)])


def options(command: Any) -> Iterator[str]:
    """A row of a table for each option of its own."""
    for option in command.params:
        if (
            option.name in EVERYWHERE
            or option.hidden
            or option.name in ("help", "install_completion", "show_completion")
        ):
            continue
        written = option.opts if option.param_type_name == "option" else [option.name.upper()]
        names = ", ".join(f"`{text}`" for text in [*written, *option.secondary_opts])
        plain = option.default is None or option.is_flag or callable(option.default)
        yield f"| {names} | {' '.join((option.help or '').split())}{'' if plain else f' (default: {option.default})'} |"


def reference() -> str:
    """All commands, by panel."""
    panels: dict[str, list[str]] = {}
    for panel, name, command in commands(typer.main.get_command(app)):
        lines = panels.setdefault(panel, [])
        lines += [f"### `{name}`", "", "```text", usage(name, command), "```", "", (command.help or "").strip(), ""]
        if rows := list(options(command)):
            lines += ["| option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(line for panel, lines in panels.items() for line in (f"## {panel}", "", *lines))
