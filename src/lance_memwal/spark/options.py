"""The options of `format("memwal")`, and names of columns as Spark's resolver matches them.

Owns `Options`, `resolved` and `found`. Invariants:

1. An option that nobody knows is an error with the nearest known name; a value that does not fit says what would.
2. What Spark itself passes along (checkpoints, query names) is let through.
3. Credentials (`storage.*`) are in no repr and in no error.
4. Names match in any case, unless `spark.sql.caseSensitive` is set; one that means two columns is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lance_memwal.arguments import check_column, described, digits_of, suggestion
from lance_memwal.errors import InvalidInputError


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


# ------------------------------------------------------------------------------------------------------------ options


Operation = Literal["upsert", "append", "update", "delete"]
STORAGE_PREFIX = "storage."
# Options that the package and its JVM part set, and no user.
CASE_SENSITIVE = "__caseSensitive"
CHANGE_FEED = "__changeFeed"
PUSHED = "__pushed"
UNCHANGED_SINCE = "__unchangedSince"
STATEMENT_ON = "__statementOn"
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "triggerinterval", "path", "paths", "__commit__"})
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


@dataclass(frozen=True, slots=True)
class Options:
    """Every option with its value; field names are the option names in snake case."""

    path: str
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    case_sensitive: bool = False  # internal: as the session has it
    # reading
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    time_zone: str | None = None
    consistency: Literal["fresh", "flushed"] = "fresh"
    rows_per_partition: int = 1_000_000
    as_of: str | None = None
    pushed: str | None = None  # internal: `face.pushed` makes `filter`, `limit` and `count` of it
    limit: int | None = None
    count: bool = False
    # writing
    operation: Operation | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    sequence_by: str | None = None
    duplicates: Literal["error", "last", "live"] = "error"
    missing: Literal["error", "null", "keep"] | None = None
    if_absent: bool = False
    where: str | None = None
    merge_schema: bool = False
    primary_key: tuple[str, ...] | None = None  # of the table that `saveAsTable` creates, or of an existing one
    sharding: str | None = None
    merge: str | None = None
    maintenance: Literal["background", "off"] = "background"
    unchanged_since: str | None = None  # internal: see `unchanged`
    statement_on: str | None = None  # internal: the snapshot that UPDATE, DELETE or MERGE reads
    # the change feed
    change_feed: bool = False  # internal
    starting_position: Literal["snapshot", "earliest", "latest"] = "snapshot"
    consumer: str | None = None
    fail_on_data_loss: bool = True
    max_entries_per_trigger: int | None = None
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    changes_from: str | None = None
    changes_to: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """The options that a user gave, checked."""
        lowered = {name.lower(): (name, value) for name, value in given.items()}
        path = lowered.get("path", ("path", ""))[1]
        if not path:
            raise InvalidInputError('give the table\'s URI: .load(uri), .save(uri), .start(uri) or option("path", uri)')
        values: dict[str, Any] = {"path": path}
        storage: dict[str, str] = {}
        for lower, (name, value) in lowered.items():
            if lower.startswith(STORAGE_PREFIX):
                storage[lower[len(STORAGE_PREFIX) :]] = value
            elif lower in _PARSERS:
                attribute, parse = _PARSERS[lower]
                values[attribute] = parse(_SHOWN[lower], value)  # Spark hands names over in lower case
            elif lower not in _SPARKS_OWN:
                raise InvalidInputError(_unknown(name))
        parsed = cls(**values, storage_options=storage)
        parsed._check_together()
        return parsed

    def _check_together(self) -> None:
        if self.txn_app_id is None and self.txn_version is not None:  # a stream has versions of its own
            raise InvalidInputError("option 'txnVersion' needs 'txnAppId': the version counts per application")
        if self.as_of is not None and (self.change_feed or self.consistency != "fresh"):
            raise InvalidInputError(
                "option 'asOf' is for reads of the whole table; leave out 'consistency', and read no change feed"
            )
        if self.sequence_by is not None and self.duplicates != "error":
            raise InvalidInputError("options 'sequenceBy' and 'duplicates' exclude each other: one rule decides")
        if self.if_absent and self.operation in ("update", "delete"):
            raise InvalidInputError(
                f"option 'ifAbsent' writes new keys only, which operation {self.operation!r} does not"
            )
        if self.changes_to is not None and self.changes_from is None:
            raise InvalidInputError("option 'changesTo' needs 'changesFrom': changes are read between two moments")
        if self.operation == "update" and self.missing not in (None, "keep"):
            raise InvalidInputError("operation 'update' keeps the columns that are left out: leave out 'missing'")


def told_by(session: Any) -> dict[str, str]:
    """The settings of a session about names and times, as options; the JVM part passes the same."""
    zone, case_sensitive = session.conf.get("spark.sql.session.timeZone"), session.conf.get("spark.sql.caseSensitive")
    return {"timeZone": zone, CASE_SENSITIVE: case_sensitive}


def _unknown(name: str) -> str:
    return f"unknown option {name!r}{suggestion(name, _NAMES.values())}"


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidInputError(f"option {name!r} must not be empty")
    return value


def _names(name: str, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names:
        raise InvalidInputError(f"option {name!r} is a list of column names with commas, not {value!r}")
    return names


def _number(name: str, value: str) -> int:
    number = digits_of(value.strip())
    if number is None:
        raise InvalidInputError(f"option {name!r} is a number >= 0, not {described(value)}")
    return number


def _positive(name: str, value: str) -> int:
    number = _number(name, value)
    if number < 1:
        raise InvalidInputError(f"option {name!r} is a number >= 1, not {value!r}")
    return number


def _bytes(name: str, value: str) -> int:
    text = value.strip().lower()
    digits = text.rstrip("kmgb")
    unit = text[len(digits) :]
    number = digits_of(digits)
    if number is None or (unit and unit not in _SUFFIXES):
        raise InvalidInputError(f"option {name!r} is a number of bytes such as 4194304 or '4m', not {described(value)}")
    return number * _SUFFIXES.get(unit, 1)


def _flag(name: str, value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise InvalidInputError(f"option {name!r} is true or false, not {value!r}")
    return lowered == "true"


def _one_of(*known: str) -> Any:
    def parse(name: str, value: str) -> str:
        if value not in known:
            raise InvalidInputError(f"option {name!r} is one of {', '.join(known)}, not {value!r}")
        return value

    return parse


_OPTIONS: dict[str, tuple[str, Any]] = {
    "columns": ("columns", _names),
    "filter": ("filter", _text),
    "timeZone": ("time_zone", _text),
    "consistency": ("consistency", _one_of("fresh", "flushed")),
    "rowsPerPartition": ("rows_per_partition", _positive),
    "asOf": ("as_of", _text),
    "operation": ("operation", _one_of("upsert", "append", "update", "delete")),
    "txnAppId": ("txn_app_id", _text),
    "txnVersion": ("txn_version", _number),
    "sequenceBy": ("sequence_by", _text),
    "duplicates": ("duplicates", _one_of("error", "last", "live")),
    "missing": ("missing", _one_of("error", "null", "keep")),
    "ifAbsent": ("if_absent", _flag),
    "where": ("where", _text),
    "mergeSchema": ("merge_schema", _flag),
    "primaryKey": ("primary_key", _names),
    "sharding": ("sharding", _text),
    "merge": ("merge", _text),
    "maintenance": ("maintenance", _one_of("background", "off")),
    "startingPosition": ("starting_position", _one_of("snapshot", "earliest", "latest")),
    "consumer": ("consumer", _text),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "maxEntriesPerTrigger": ("max_entries_per_trigger", _positive),
    "maxRowsPerTrigger": ("max_rows_per_trigger", _positive),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _bytes),
    "changesFrom": ("changes_from", _text),
    "changesTo": ("changes_to", _text),
}
_INTERNAL: dict[str, tuple[str, Any]] = {
    CASE_SENSITIVE: ("case_sensitive", _flag),
    CHANGE_FEED: ("change_feed", _flag),
    PUSHED: ("pushed", _text),
    UNCHANGED_SINCE: ("unchanged_since", _text),
    STATEMENT_ON: ("statement_on", _text),
}
_SHOWN = {shown.lower(): shown for shown in (*_OPTIONS, *_INTERNAL)}
_PARSERS = {shown.lower(): entry for shown, entry in (*_OPTIONS.items(), *_INTERNAL.items())}
_NAMES = {shown.lower(): shown for shown in _OPTIONS}
