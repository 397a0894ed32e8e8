"""What the JVM asks Python on the driver: a source whose schema is the answer to a command.

Owns `FaceSource` and the table of commands. A command is a name and JSON arguments; its answer is a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.spark.face.answers import answered, refused
from lance_memwal.spark.face.describing import described
from lance_memwal.spark.face.listings import PROCEDURES
from lance_memwal.spark.face.statements import STATEMENTS, table_at
from lance_memwal.spark.options import Options
from lance_memwal.table import open_table


class FaceSource(DataSource):
    """Runs one command when Spark asks for its columns."""

    @classmethod
    def name(cls) -> str:
        """The format, which only the JVM face uses."""
        return "memwal_face"

    def schema(self) -> StructType:
        """The answer."""
        run = _COMMANDS[self.options["command"]]
        try:
            return answered(run(json.loads(self.options["arguments"])))
        except MemWalError as error:
            return refused(error)


def _describe(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return described(Options.parse(arguments["options"]))


def _snapshot(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The table as it is now, for a statement that is planned on it."""
    options = Options.parse(arguments["options"])
    return {"snapshot": str(open_table(options.path, storage_options=options.storage_options).snapshot())}


def _call(arguments: Mapping[str, Any]) -> dict[str, Any]:
    table = table_at(arguments)
    if table is None:
        raise InvalidInputError(f"there is no table {'.'.join([*arguments['namespace'], arguments['table']])}")
    return PROCEDURES[arguments["procedure"]](table, **arguments["given"])


_COMMANDS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "describe": _describe,
    "snapshot": _snapshot,
    "call": _call,
    **STATEMENTS,
}
