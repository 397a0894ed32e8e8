"""Libraries that are only needed for a part of what a table can do.

Owns `need`. Invariant: a library that is not installed is one line that says what to install.
"""

from __future__ import annotations

import importlib
from typing import Any

from lance_memwal.errors import MissingLibraryError


def need(module: str, extra: str, what: str) -> Any:
    """The module; `MissingLibraryError` that says how to install it if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingLibraryError(f"{what} needs {error.name}: pip install 'lance-memwal[{extra}]'") from None
