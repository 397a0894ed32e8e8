"""Filters select what Spark would select, or are refused; names of columns are matched as Spark does."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.dialect import as_spark_reads
from lance_memwal.spark.names import found, refuse_doubles, resolved

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("Name", pa.string()),
        ("twice", pa.int32()),
        ("Twice", pa.int32()),
        ("s", pa.struct([("id", pa.int32())])),
    ]
)


def test_timestamps_are_meant_in_the_zone_of_the_session() -> None:
    text = "at >= timestamp '2026-01-31 12:00:00' and id > 1"
    tokyo = as_spark_reads(text, SCHEMA, zone="Asia/Tokyo")
    assert tokyo == "at >= timestamp '2026-01-31 03:00:00.000000+00:00' and id > 1"
    assert as_spark_reads(text, SCHEMA, zone="+09:00") == tokyo == as_spark_reads(text, SCHEMA, zone="GMT+9")
    assert "12:00:00.000000+00:00" in as_spark_reads(text, SCHEMA, zone="UTC")
    summer = as_spark_reads("at < TIMESTAMP '2026-07-01'", SCHEMA, zone="Europe/Berlin")
    assert summer == "at < timestamp '2026-06-30 22:00:00.000000+00:00'"
    for told in ("at > timestamp '2026-01-31 12:00:00+02:00'", "local > timestamp '2026-01-31 12:00:00'"):
        assert as_spark_reads(told, SCHEMA, zone="Asia/Tokyo") == told
        assert as_spark_reads(told, SCHEMA) == told


@pytest.mark.parametrize("text", ["12:00:00+02:00:30", "12:00:00 +02:00:30", "12:00:00.000000+02:00:30"])
def test_the_seconds_of_a_zone_count(text: str) -> None:
    for zone in (None, "Asia/Tokyo"):
        told = as_spark_reads(f"at > timestamp '2026-01-31 {text}'", SCHEMA, zone=zone)
        assert told == "at > timestamp '2026-01-31 09:59:30.000000+00:00'"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("at > timestamp '2026-01-31 12:00:00'", "timeZone"),
        ("local > timestamp '2026-01-31 12:00:00+02:00'", "without one"),
        ("local > timestamp '2026-01-31 12:00:00' and at > timestamp '2026-01-31 12:00:00'", "with and without"),
        ("at >= date '2026-01-31'", "write timestamp '2026-01-31'"),
        ("id / 2 = 1", "divides"),
        ("Name = 'a\\nb'", "backslash"),
        ("substr(Name, 0, 2) = 'ab'", "function 'substr'"),
        ("cast(at as string) = 'x'", "'cast'"),
        ("Name::boolean", "'::'"),
        ("id :: string = '1'", "'::'"),
        ("local > timestamp '2026-01-31 12:00:00+02:00:30'", "without one"),
        ("at < now()", "'now'"),
        ("TWICE = 1", "ambiguous"),
    ],
)
def test_what_the_two_read_differently_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        as_spark_reads(text, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "id > 1 and (NAME like 'a%' or `name` is null) and id in (1, 2)",
        "day = date '2026-01-31'",
        "lower(name) = 'x' and s.id = 1 and id % 2 = 0",
        "json_extract(name, '$.a') = '1'",
        "name = 'timestamp ''2026-01-31'''",
    ],
)
def test_what_both_read_alike_stays_as_it_is(text: str) -> None:
    assert as_spark_reads(text, SCHEMA) == text


def test_a_case_sensitive_session_takes_exact_names_only() -> None:
    assert as_spark_reads("Twice = 1", SCHEMA, case_sensitive=True) == "Twice = 1"
    with pytest.raises(InvalidInputError, match="caseSensitive"):
        as_spark_reads("name = 'a'", SCHEMA, case_sensitive=True)


def test_names_match_as_the_resolver_of_spark_matches_them() -> None:
    assert resolved("ID", SCHEMA.names) == "id"
    assert resolved("Twice", SCHEMA.names, case_sensitive=True) == "Twice"
    assert found("nope", SCHEMA.names) is None
    for name, case_sensitive, reason in (("twice", False, "ambiguous"), ("ID", True, "not in the table")):
        with pytest.raises(InvalidInputError, match=reason):
            resolved(name, SCHEMA.names, case_sensitive=case_sensitive)
    refuse_doubles(["a", "b", "A"], case_sensitive=True)
    with pytest.raises(InvalidInputError, match="'a' and 'A'"):
        refuse_doubles(["a", "b", "A"])
    for case_sensitive in (False, True):
        with pytest.raises(InvalidInputError, match="'a' and 'a'"):
            refuse_doubles(["a", "b", "a"], case_sensitive=case_sensitive)


@pytest.mark.parametrize("filler", [" ", "\t", "a", " a", "+1"])
def test_a_long_text_is_no_timestamp_and_takes_no_time(filler: str) -> None:
    """Mutated inputs found some that took more than 20 seconds: a long run of spaces was read once per space."""
    with pytest.raises(InvalidInputError, match="no timestamp"):
        as_spark_reads(f"at > timestamp '2026-01-31{filler * 200_000}x'", SCHEMA, zone="UTC")
