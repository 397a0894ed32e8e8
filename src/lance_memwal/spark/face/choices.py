"""How CREATE TABLE says what kind of table it wants: constraints, PARTITIONED BY and TBLPROPERTIES.

Owns `choices_of`. A property that nobody knows is an error: a key that was misspelled would make a table without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.merging import merge_of_text
from lance_memwal.rows.sharding import ONE_SHARD, Sharding, sharding_of_text

__all__ = ["choices_of"]

_OPTION = "option."
_SPARKS_OWN = frozenset({"provider", "owner", "comment", "external", "is_managed_location", "table_type", "collation"})
_KNOWN = frozenset({"primary_key", "sharding", "merge"})


def choices_of(
    properties: Mapping[str, str], key: Sequence[str], partitioning: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """The arguments of `create_table` that a statement asks for."""
    given = {name.removeprefix(_OPTION): value for name, value in properties.items()}
    unknown = sorted(set(given) - _KNOWN - _SPARKS_OWN)
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        raise InvalidInputError(f"table property {unknown[0]!r} is not known; known: {known}")
    named = [part.strip() for part in given.get("primary_key", "").split(",") if part.strip()]
    if key and named and list(key) != named:
        raise InvalidInputError("PRIMARY KEY and the property primary_key say different things: give one of them")
    return {
        "primary_key": list(key) or named or None,
        "sharding": _sharding(given.get("sharding"), partitioning),
        "merge": merge_of_text(given["merge"]) if "merge" in given else None,
    }


def _sharding(text: str | None, partitioning: Sequence[Sequence[str]]) -> Sharding:
    if text is not None and partitioning:
        raise InvalidInputError("PARTITIONED BY and the property sharding both spread rows: give one of them")
    if not partitioning:
        return ONE_SHARD if text is None else sharding_of_text(text)
    (name, *arguments), *more = partitioning
    if more or name not in ("bucket", "identity"):
        raise InvalidInputError("rows are spread by one column: PARTITIONED BY (bucket(n, column)) or (column)")
    return sharding_of_text(f"{name}({','.join(reversed(arguments))})")
