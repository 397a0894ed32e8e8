"""What the statements of a catalog do: CREATE, ALTER and DROP TABLE, namespaces, and tables about tables.

Owns the answers to them. Each takes the place (`warehouse`, `storage`, `namespace`, `table`) and what the statement says, and
is a call into the library. A clause of CREATE TABLE that a table cannot keep is refused, and so is an unknown property.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import lance_errors
from lance_memwal.rows.merging import merge_of_text, text_of_merge
from lance_memwal.rows.sharding import Sharding, sharding_of_text
from lance_memwal.spark.changelog import changelog_ends, changelog_schema
from lance_memwal.spark.evolving import refuse_feed_column
from lance_memwal.spark.face.describing import described
from lance_memwal.spark.face.listings import LISTINGS
from lance_memwal.spark.face.warehouse import Warehouse
from lance_memwal.spark.options import STORAGE_PREFIX, Options
from lance_memwal.spark.replacing import all_gone, overwriting
from lance_memwal.spark.rows import WritePlan, needed_for_delete
from lance_memwal.spark.sink import BatchSink
from lance_memwal.spark.types import COMMENT, arrow_schema_for, struct_type
from lance_memwal.table import Table, create_table, newest_base, open_table

_OPTION = "option."
_SPARKS_OWN = frozenset({"provider", "owner", "comment", "is_managed_location", "table_type"})
_REFUSED = {
    "external": "EXTERNAL: a table is stored in the warehouse of its catalog, and DROP TABLE deletes it",
    "location": "LOCATION: a table is stored in the warehouse of its catalog; another directory is another catalog",
    "collation": "DEFAULT COLLATION: strings are compared by their bytes",
}
_OPTIONS = {"primarykey": "primary_key", "sharding": "sharding", "merge": "merge"}
_KNOWN = frozenset(_OPTIONS.values())


def choices_of(
    properties: Mapping[str, str],
    key: Sequence[str],
    partitioning: Sequence[Sequence[str]],
    options: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The arguments of `create_table` that a statement names, else None; `options` are those of its write."""
    given = {name.removeprefix(_OPTION): value for name, value in properties.items()}
    for name, value in (options or {}).items():
        known = _OPTIONS.get(name.lower())
        if known is not None and given.setdefault(known, value) != value:
            raise InvalidInputError(f"the option {name!r} and the property {known!r} differ: give one of them")
    for name in _REFUSED.keys() & given.keys():
        raise InvalidInputError(f"a table cannot keep {_REFUSED[name]}")
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


def _sharding(text: str | None, partitioning: Sequence[Sequence[str]]) -> Sharding | None:
    if text is not None and partitioning:
        raise InvalidInputError("PARTITIONED BY and the property sharding both spread rows: give one of them")
    if not partitioning:
        return None if text is None else sharding_of_text(text)
    (name, *arguments), *more = partitioning
    if more or name not in ("bucket", "identity"):
        raise InvalidInputError("rows are spread by one column: PARTITIONED BY (bucket(n, column)) or (column)")
    return sharding_of_text(f"{name}({','.join(reversed(arguments))})")


# --------------------------------------------------------------------------------------------------------- statements


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
    schema = changelog_schema(newest_base(table).columns.shown.columns)
    range_of = {"path": table.uri, "changesFrom": str(start), "changesTo": str(end)}
    return {"schema": json.loads(schema.json()), "key": table.primary_key, "options": range_of}


def _create_table(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    if not warehouse.has_namespace(namespace):
        return {"no_namespace": True}
    if warehouse.has_table(namespace, given["table"]):
        return {"exists": True}
    location = warehouse.table(namespace, given["table"])
    choices = _choices(given)
    columns = arrow_schema_for(st.StructType.fromJson(given["schema"]))
    choices = {name: value for name, value in choices.items() if value is not None}
    table = create_table(location.uri, columns, storage_options=location.storage_options, **choices)
    if given["properties"].get(COMMENT):
        with lance_errors("setting the comment of the table"):
            table.dataset.update_config({COMMENT: given["properties"][COMMENT]})
    return _described(given)


def _choices(given: Arguments) -> dict[str, Any]:
    return choices_of(given["properties"], given["key"], given["partitioning"], given.get("options"))


def _replace_table(given: Arguments) -> dict[str, Any]:
    """The table, if a write can replace its rows and the statement names no other definition of the table.

    Raises:
        InvalidInputError: The definition differs, or the rows cannot be replaced.
    """
    table = table_at(given)
    if table is None:
        return {"missing": True}
    choices, schema = _choices(given), st.StructType.fromJson(given["schema"])
    wanted = _definition(schema, choices["primary_key"], choices["sharding"], choices["merge"])
    wanted["comment"] = given["properties"].get(COMMENT)
    found = _definition(struct_type(table.schema), table.primary_key, table.sharding, table.merge)
    found["comment"] = newest_base(table).manifest.config(COMMENT)
    for what, value in wanted.items():
        if value is not None and found.get(what) != value:
            raise InvalidInputError(
                f"a statement replaces the rows of a table and keeps its definition: {what} is {found.get(what)}, not {value}; "
                "DROP TABLE first; nothing was written"
            )
    overwriting(table, Options(table.uri, storage_options=table.location.storage_options or {}))
    return _described(given)


def _definition(schema: st.StructType, key: Sequence[str] | None, sharding: Any, merge: Any) -> dict[str, Any]:
    """The parts of a definition, as they are compared and shown; None for a part that a statement does not name."""
    return {
        "columns": ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema),
        "primary key": None if key is None else ", ".join(key) or "none",
        "sharding": None if sharding is None else str(sharding),
        "merge": None if merge is None else text_of_merge(merge),
        **{f"the comment of {field.name}": field.metadata.get(COMMENT) for field in schema},
    }


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
    refuse_feed_column(change["add"])
    if not change["nullable"]:
        raise InvalidInputError(f"column {change['add']!r} must be nullable: existing rows have no value of it")
    return arrow_schema_for(st.StructType.fromJson(change["schema"])).field(0)


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
    refused = sorted(set(given["properties"]) - {"owner"})
    if refused:
        raise InvalidInputError(f"a namespace is a directory of the warehouse and has no {refused[0]}")
    return {"exists": warehouse.create_namespace(namespace)}


def _drop_namespace(given: Arguments) -> dict[str, Any]:
    warehouse, namespace = place_of(given)
    return warehouse.drop_namespace(namespace, cascade=given["cascade"])


STATEMENTS = {
    "load_table": _load_table,
    "load_changelog": _load_changelog,
    "create_table": _create_table,
    "replace_table": _replace_table,
    "alter_table": _alter_table,
    "drop_table": _drop_table,
    "truncate_table": _truncate_table,
    "list_tables": _list_tables,
    "list_namespaces": _list_namespaces,
    "load_namespace": _load_namespace,
    "create_namespace": _create_namespace,
    "drop_namespace": _drop_namespace,
}
