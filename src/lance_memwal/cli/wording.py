"""Errors of the library in the words of the command line.

Owns `in_our_words`. Invariant: only what is an option or a command here is spelled as one; other words stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["in_our_words"]

_SETTING = re.compile(r"\b([a-z_]+)=(True|\"[^\"]*\"|'[^']*')")
_CALL = re.compile(r"\b(?:Table|table)\.([a-z_]+)(?:\(\))?")


def in_our_words(text: str, options: Collection[str], commands: Collection[str]) -> str:
    """`exist_ok=True` becomes `--exist-ok`, `Table.verify()` becomes `memwal verify`."""

    def setting(found: re.Match[str]) -> str:
        name, value = f"--{found.group(1).replace('_', '-')}", found.group(2).strip("\"'")
        if name not in options:
            return found.group()
        return name if value == "True" else f"{name} {value}"

    def call(found: re.Match[str]) -> str:
        return f"memwal {found.group(1)}" if found.group(1) in commands else found.group()

    return _CALL.sub(call, _SETTING.sub(setting, text))
