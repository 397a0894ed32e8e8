"""The values that say which columns stored rows had.

`NamedField` is one field of a table or of a stored schema, `Written` is what is recorded of stored rows, `Past` knows the
columns of earlier versions of a table. The rule that uses them is in `lance_memwal.lance.column_past`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from lance_memwal.types import BaseMark

Undecided: TypeAlias = tuple[tuple[int, str], ...]
"""Field ids, and the names under which rows have them."""
NO_FIELD: Final = (1 << 31) - 1  # an id that no field of a table has


class NamedField(NamedTuple):
    """One field: its Lance id, its path from the column down, and its type as Lance names it.

    The elements of lists and maps have an empty name in the path: their names differ between writers.
    """

    id: int
    path: tuple[str, ...]
    kind: str = ""

    @property
    def name(self) -> str:
        """Its own name."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Written:
    """The record of how stored rows were written.

    `base` names the base version whose columns the rows have; None if it is not recorded. `positional` are the fields of a
    generation whose ids are 0..n in column order; None for all other rows. `is_foreign` returns whether another
    implementation wrote that generation. It may cost a request.
    """

    base: BaseMark | None = None
    positional: tuple[NamedField, ...] | None = None
    is_foreign: Callable[[], bool] = field(default=bool, compare=False)
    path: str | None = None


NOT_RECORDED = Written()


class Past(Protocol):
    """The columns of one version of a base table, and of other versions as far as they are kept."""

    @property
    def mark(self) -> BaseMark:
        """The version, as it is recorded of rows."""
        ...

    @property
    def rulings(self) -> Sequence[object]:
        """What `repair` decided about rows of other versions."""
        ...

    def settle(self, stored: pa.Schema, written: Written) -> pa.Schema:
        """The stored columns with the field ids that the table had for them; their ids are in the metadata.

        `UnsupportedFormatError` if more than one answer is possible.
        """
        ...

    def own(self, column: pa.Field, written: Written) -> tuple[pa.Field, Undecided]:
        """A stored column with `NO_FIELD` as the id of every field in it that is another field of the table today.

        Also returns those of these fields for which no kept version decides that.
        """
        ...

    def reads_like(self, other: Past) -> bool:
        """Whether both versions read all rows alike if their columns are equal."""
        ...


def undecided_text(undecided: Mapping[str, Undecided]) -> str:
    """Describe what is undecided: per column of the table the field ids, and the names under which rows have them."""
    columns = "; ".join(
        f"column {column!r} has field id {number}, which rows have as {name!r}"
        for column, stored in sorted(undecided.items())
        for number, name in stored
    )
    return (
        f"{columns}: no kept version of the base table shows whether this is the same column; "
        "Table.repair(reused_ids='values' or 'null') decides"
    )
