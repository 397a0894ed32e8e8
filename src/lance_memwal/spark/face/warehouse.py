"""A warehouse: a directory of tables, and of namespaces, which are directories again.

Owns what is where: `ns/orders.lance` below the warehouse is the table `ns.orders`. Invariant:

1. A table is there if its base table is: a directory alone is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_memwal.errors import ObjectExistsError
from lance_memwal.lance.base import BaseTable
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.table import open_table


@dataclass(frozen=True, slots=True)
class Warehouse:
    """One directory of tables."""

    root: Location

    @classmethod
    def of(cls, uri: str, storage_options: Mapping[str, str]) -> Warehouse:
        """The warehouse at `uri`; nothing is read or made yet."""
        return cls(resolve(uri, storage_options))

    # ---------------------------------------------------------------------------------------------------- tables

    def table(self, namespace: Sequence[str], name: str) -> Location:
        """The place of a table."""
        return resolve(self.root.child_uri(paths.warehouse_table(namespace, name)), self.root.storage_options)

    def has_table(self, namespace: Sequence[str], name: str) -> bool:
        """Whether there is a table."""
        return BaseTable.open(self.table(namespace, name)) is not None

    def tables(self, namespace: Sequence[str]) -> list[str]:
        """The tables of a namespace."""
        named = map(paths.parse_table_name, self._names(namespace))
        return sorted(name for name in named if name is not None and self.has_table(namespace, name))

    def drop_table(self, namespace: Sequence[str], name: str) -> bool:
        """Remove a table, whoever writes to it; whether there was one."""
        if not self.has_table(namespace, name):
            return False
        open_table(self.table(namespace, name)).drop(force=True)
        return True

    # ---------------------------------------------------------------------------------------------------- namespaces

    def namespaces(self, namespace: Sequence[str]) -> list[str]:
        """The namespaces directly below one."""
        named = map(paths.parse_namespace_name, self._names(namespace))
        return sorted(name for name in named if name is not None and self.has_namespace([*namespace, name]))

    def has_namespace(self, namespace: Sequence[str]) -> bool:
        """Whether there is a namespace: the warehouse itself, one that was made, or a directory of tables."""
        return not namespace or bool(self._names(namespace))

    def create_namespace(self, namespace: Sequence[str]) -> bool:
        """Make a namespace; whether there was one already."""
        try:
            self.root.store.put_new(paths.namespace_path(namespace), b"{}")
        except ObjectExistsError:
            return True
        return False

    def drop_namespace(self, namespace: Sequence[str], *, cascade: bool) -> dict[str, Any]:
        """Remove a namespace, with all that is in it if `cascade` says so."""
        tables, below = self.tables(namespace), self.namespaces(namespace)
        if (tables or below) and not cascade:
            return {"not_empty": True}
        there = self.has_namespace(namespace)
        for name in below:
            self.drop_namespace([*namespace, name], cascade=True)
        for name in tables:
            self.drop_table(namespace, name)
        self.root.store.delete(paths.namespace_path(namespace))
        if self.root.is_local:
            self.root.store.delete(paths.warehouse_dir(namespace))
        return {"dropped": there}

    def _names(self, namespace: Sequence[str]) -> list[str]:
        return self.root.store.list_names(paths.warehouse_dir(namespace))
