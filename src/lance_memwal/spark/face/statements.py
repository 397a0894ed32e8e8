"""What the statements of a catalog do: CREATE, ALTER and DROP TABLE, namespaces, and tables about tables.

Owns the answers to them. Each takes the place (`warehouse`, `storage`, `namespace`, `table`) and what the statement says, and
is a call into the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import lance_errors
from lance_memwal.spark.changelog import changelog_ends, changelog_schema
from lance_memwal.spark.face.choices import choices_of
from lance_memwal.spark.face.describing import described
from lance_memwal.spark.face.listings import LISTINGS
from lance_memwal.spark.face.warehouse import Warehouse
from lance_memwal.spark.options import STORAGE_PREFIX, Options
from lance_memwal.spark.replacing import all_gone, overwriting
from lance_memwal.spark.rows import WritePlan, needed_for_delete
from lance_memwal.spark.sink import BatchSink
from lance_memwal.spark.types import arrow_schema_for, struct_type
from lance_memwal.table import Table, create_table, open_table

__all__ = ["STATEMENTS", "place_of", "table_at"]

Arguments = Mapping[str, Any]


def place_of(given: Arguments) -> tuple[Warehouse, list[str]]:
    """The warehouse and the namespace of a command."""
    storage = {name.removeprefix(STORAGE_PREFIX): value for name, value in given["storage"].items()}
    return Warehouse.of(given["warehouse"], storage), given["namespace"]


def table_at(given: Arguments) -> Table | None:
    """The table that a command names; None if there is none."""
    warehouse, namespace = place_of(given)
    if not warehouse.has_table(namespace, given["table"]):
        return None
    return open_table(warehouse.table(namespace, given["table"]))


def _described(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    location = warehouse.table(namespace, given["table"])
    moment = {"as_of": given["as_of"]} if "as_of" in given else {}
    options = Options(location.uri, storage_options=location.storage_options or {}, **moment)
    return {**described(options), "path": location.uri, **moment}


def _load_table(given: Arguments) -> dict[str, Any]:
    if table_at(given) is not None:
        return _described(given)
    *above, name = given["namespace"] or [""]
    about = table_at({**given, "namespace": above, "table": name}) if given["table"] in LISTINGS and name else None
    return {"missing": True} if about is None else LISTINGS[given["table"]](about)


def _load_changelog(given: Arguments) -> dict[str, Any]:
    """The changes of a range, whose ends become cursors here."""
    table = table_at(given)
    if table is None:
        return {"missing": True}
    start, end = changelog_ends(table, given["from"], given.get("to"))
    schema = changelog_schema(table.base.columns.shown.columns)
    range_of = {"path": table.uri, "changesFrom": str(start), "changesTo": str(end)}
    return {"schema": json.loads(schema.json()), "key": table.primary_key, "options": range_of}


def _create_table(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    if not warehouse.has_namespace(namespace):
        return {"no_namespace": True}
    if warehouse.has_table(namespace, given["table"]):
        return {"exists": True}
    location = warehouse.table(namespace, given["table"])
    columns = arrow_schema_for(st.StructType.fromJson(given["schema"]))
    choices = choices_of(given["properties"], given["key"], given["partitioning"])
    create_table(location.uri, columns, storage_options=location.storage_options, **choices)
    return _described(given)


def _alter_table(given: Arguments) -> dict[str, Any]:
    table = table_at(given)
    if table is None:
        return {"missing": True}
    for change in given["changes"]:
        _change(table, change)
    return _described(given)


def _change(table: Table, change: Arguments) -> None:
    name = str(change.get("add") or change.get("drop") or change.get("rename"))
    if "." in name:
        raise InvalidInputError(f"{name!r} is a field of a column: columns are added, dropped and renamed as a whole")
    with lance_errors("changing the columns"):
        if "add" in change:
            table.dataset.add_columns(pa.schema([_new_column(change)]))  # one that is there already is an error
        elif "rename" in change:
            renamed: Any = {"path": name, "name": change["to"]}
            table.dataset.alter_columns(renamed)
        elif not change["if_exists"] or name in table.schema.names:
            _refuse_needed(table, name)
            table.dataset.drop_columns([name])


def _new_column(change: Arguments) -> pa.Field:
    if not change["nullable"]:
        raise InvalidInputError(
            f"column {change['add']!r} must be nullable: the rows that are there have no value of it"
        )
    field = {"name": change["add"], "type": change["type"], "nullable": True, "metadata": {}}
    return arrow_schema_for(st.StructType.fromJson({"type": "struct", "fields": [field]})).field(0)


def _refuse_needed(table: Table, name: str) -> None:
    if name in needed_for_delete(table.primary_key, table.sharding, table.merge):
        raise InvalidInputError(
            f"column {name!r} is part of the key, the sharding or the merge of the table, and stays"
        )


def _drop_table(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    return {"dropped": warehouse.drop_table(namespace, given["table"])}


def _truncate_table(given: Arguments) -> dict[str, Any]:
    options = Options.parse(given["options"])
    table = open_table(options.path, storage_options=options.storage_options)
    plan = WritePlan.make(table, struct_type(table.schema), overwriting(table, options))
    BatchSink(plan, all_gone).commit([])
    return {}


def _list_tables(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    return {"tables": warehouse.tables(namespace)}


def _list_namespaces(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    return {"namespaces": warehouse.namespaces(namespace)}


def _load_namespace(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    return {"exists": warehouse.has_namespace(namespace)}


def _create_namespace(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    return {"exists": warehouse.create_namespace(namespace)}


def _drop_namespace(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    return warehouse.drop_namespace(namespace, cascade=given["cascade"])


STATEMENTS = {
    "load_table": _load_table,
    "load_changelog": _load_changelog,
    "create_table": _create_table,
    "alter_table": _alter_table,
    "drop_table": _drop_table,
    "truncate_table": _truncate_table,
    "list_tables": _list_tables,
    "list_namespaces": _list_namespaces,
    "load_namespace": _load_namespace,
    "create_namespace": _create_namespace,
    "drop_namespace": _drop_namespace,
}
