"""Names of columns, matched as Spark's resolver matches them.

Owns `resolved` and `found`. Names match whatever their case, unless `spark.sql.caseSensitive` is set; one that means two columns
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lance_memwal.arguments import check_column
from lance_memwal.errors import InvalidInputError

__all__ = ["found", "refuse_doubles", "resolved"]


def found(name: str, columns: Sequence[str], *, case_sensitive: bool = False) -> str | None:
    """The column that a name means; None if there is none, `InvalidInputError` if there are two."""
    if case_sensitive:
        return name if name in columns else None
    matching = [column for column in columns if column.lower() == name.lower()]
    if len(matching) > 1:
        raise InvalidInputError(
            f"column {name!r} is ambiguous, it may be {' or '.join(map(repr, matching))}: set spark.sql.caseSensitive "
            "to true, or rename one of them"
        )
    return matching[0] if matching else None


def resolved(name: str, columns: Sequence[str], what: str = "column", *, case_sensitive: bool = False) -> str:
    """The column that a name means; `InvalidInputError` if there is none, or if there are two."""
    column = found(name, columns, case_sensitive=case_sensitive)
    if column is None:
        check_column(name, [item for item in columns if item != name], what)
    return column or name


def refuse_doubles(names: Iterable[str], *, case_sensitive: bool = False) -> None:
    """Return only if no two of these names, of one DataFrame, mean the same column."""
    seen: dict[str, str] = {}
    for name in names:
        meant = name if case_sensitive else name.lower()
        if meant in seen:
            raise InvalidInputError(
                f"columns {seen[meant]!r} and {name!r} of the DataFrame mean the same column: rename one of them"
            )
        seen[meant] = name
