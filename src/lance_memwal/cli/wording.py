"""Errors of the library in the words of the command line.

Owns `Words`. Invariant: only what is an option or a command here is spelled as one; other words stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

__all__ = ["Words"]

_CALL = re.compile(r"\b(?:Table|table|lance_memwal)\.([a-z_]+)(?:\(([^()]*)\))?")
_SETTING = re.compile(r"\b([a-z_]+)=(True|False|\.\.\.|\"[^\"]*\"|'[^']*')")
_RULE = re.compile(r"\b([a-z_]+) must be\b")
_DROP = re.compile(r"\bdrop_consumer\('([^']*)'\)")
_COMMANDS = {"create_table": "create"}  # those with another name here
_SETTINGS = {"dry_run=False": "--apply"}


@dataclass(frozen=True, slots=True)
class Words:
    """The options (`--exist-ok`) and the commands (`verify`) that there are."""

    options: Collection[str]
    commands: Collection[str]

    @classmethod
    def of(cls, app: Any) -> Words:
        """Those of a command line, and of its groups of commands."""
        commands: dict[str, Any] = getattr(app, "commands", {})
        parts = [part for command in commands.values() for part in getattr(command, "commands", {"": command}).values()]
        return cls({name for part in parts for param in part.params for name in param.opts}, commands)

    def said(self, text: str) -> str:
        """`exist_ok=True` becomes `--exist-ok`, `Table.verify()` becomes `memwal verify`."""
        text = _DROP.sub(r"memwal consumers --drop \1", text)
        return _RULE.sub(self._rule, _SETTING.sub(self._setting, _CALL.sub(self._call, text)))

    def _call(self, found: re.Match[str]) -> str:
        name = _COMMANDS.get(found.group(1), found.group(1))
        if name not in self.commands:
            return found.group()
        settings = [self._settings(part.strip()) for part in (found.group(2) or "").split(",") if part.strip()]
        return " ".join(["memwal", name, *settings])

    def _settings(self, text: str) -> str:
        return _SETTING.sub(self._setting, text)

    def _setting(self, found: re.Match[str]) -> str:
        if found.group() in _SETTINGS:
            return _SETTINGS[found.group()]
        name, value = f"--{found.group(1).replace('_', '-')}", found.group(2).strip("\"'")
        if name not in self.options or value == "False":
            return found.group()
        return name if value == "True" else f"{name} {value}"

    def _rule(self, found: re.Match[str]) -> str:
        name = f"--{found.group(1).replace('_', '-')}"
        return f"{name} must be" if name in self.options else found.group()
