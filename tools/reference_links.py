"""Names of the library in the prose of a page, as links to the reference.

Owns which text means which name. Invariants:

1. Only what the reference has is linked: public names of the package, and the documented methods of its classes.
2. Each name is linked once per page, where it is met first; headings, links and blocks of code stay as they are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lance_memwal

CONFIG = Path(__file__).resolve().parent / "mkdocs.yml"
SPOKEN = {"table": "Table", "writer": "TableWriter"}  # what pages call an object of the class
_SPAN = re.compile(r"(?<![\[`])`((?:mw\.)?[A-Za-z_]\w*(?:\.[a-z]\w*)?)(\([^`]*\))?`(?![\]`])")
_HIDDEN = re.search(r'"!(\^\([a-z_|]+\)\$)"', CONFIG.read_text(encoding="utf-8"))


@cache
def names() -> dict[str, str]:
    """What a page may write, and the name of the reference that it means."""
    found = {}
    for identifier in _documented():
        short = identifier.removeprefix("lance_memwal.")
        found[short] = found[f"mw.{short}"] = identifier
        owner, _, member = short.partition(".")
        for spoken in (word for word, name in SPOKEN.items() if member and name == owner):
            found[f"{spoken}.{member}"] = identifier
    return found


def _documented() -> Iterator[str]:
    for name in lance_memwal.__all__:
        value = getattr(lance_memwal, name)
        if inspect.ismodule(value) or name.startswith("_"):
            continue
        yield f"lance_memwal.{name}"
        for member, inner in vars(value).items() if inspect.isclass(value) else ():
            method = getattr(inner, "__func__", getattr(inner, "fget", inner))
            hidden = member.startswith("_") or (_HIDDEN is not None and re.match(_HIDDEN[1], member))
            if not hidden and inspect.isfunction(method) and method.__doc__:
                yield f"lance_memwal.{name}.{member}"


def linked(line: str, seen: set[str]) -> str:
    """A line of prose with links to names that the page has not linked yet; they are added to `seen`."""

    def link(found: re.Match[str]) -> str:
        name = names().get(found[1])
        if name is None or name in seen:
            return found[0]
        seen.add(name)
        return f"[{found[0]}][{name}]"

    return line if line.startswith("#") else _SPAN.sub(link, line)
