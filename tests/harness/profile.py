"""How much a test does: sizes for every commit, or the full-scale proof.

Owns the reading of `LANCE_MEMWAL_PROFILE`: `ci` (the default, what `make test` runs) or `prove` (what `make prove` runs).
Invariant: an unknown profile is an error, so that a misspelt proof never passes as one.
"""

import os
from typing import Final, TypeVar

from lance_memwal.errors import InvalidInputError

PROFILES: Final = ("ci", "prove")
_Value = TypeVar("_Value")


def profile() -> str:
    """The profile of this run, one of `PROFILES`."""
    name = os.environ.get("LANCE_MEMWAL_PROFILE", "") or "ci"
    if name not in PROFILES:
        raise InvalidInputError(f"LANCE_MEMWAL_PROFILE must be one of {', '.join(PROFILES)}, not {name!r}")
    return name


def scaled(*, ci: _Value, prove: _Value) -> _Value:
    """The value that belongs to the profile of this run: `scaled(ci=100, prove=2_500)`."""
    return prove if profile() == "prove" else ci
