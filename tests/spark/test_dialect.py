"""Filters of Spark select in Lance the rows that Spark would select, or are refused; names and times mean what they mean
in Spark.
"""

import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.dialect import as_spark_reads
from lance_memwal.spark.options import found, refuse_doubles, resolved
from tests.kit.spark import keyed, rows_of

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
        ("x", pa.float32()),
        ("y", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("date", pa.date32()),
        ("old", pa.timestamp("ms", tz="UTC")),
        ("u", pa.uint8()),
        ("raw", pa.binary()),
        ("two words", pa.int32()),
    ]
)
NOON = "arrow_cast({}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("id > 1", "(`id` > 1)"),
        ("ID == -5 AND not flag", "((`id` = -5) and (not (`flag`)))"),
        ("id != 1 or flag = TRUE", "((`id` <> 1) or (`flag` = true))"),
        ("(id > 1 /* one */ and -- two\n id < 5) or id in (7, 8)", "(((`id` > 1) and (`id` < 5)) or (`id` in (7, 8)))"),
        ("not id = 1 and flag", "((not (`id` = 1)) and (`flag`))"),
        ("id not in (1)", "(`id` not in (1))"),
        ("id Between 1 and 2 and flag", "(((`id` >= 1 and `id` <= 2)) and (`flag`))"),
        ("id not between 1 and 2", "(not (`id` >= 1 and `id` <= 2))"),
        ("NAME like 'a%' or `name` is null", "((`Name` like 'a%') or (`Name` is null))"),
        ("name not like '_'", "(`Name` not like '_')"),
        ("name = 'timestamp ''2026-01-31'''", "(`Name` = 'timestamp ''2026-01-31''')"),
        ("day = date '2026-01-31'", "(`day` = arrow_cast(20484, 'Date32'))"),
        ("day = date'2026-01-31'", "(`day` = arrow_cast(20484, 'Date32'))"),
        ("date > DATE '1970-01-01' and `date` = day", "((`date` > arrow_cast(0, 'Date32')) and (`date` = `day`))"),
        ("price = 1.5", "(`price` = arrow_cast('1.50', 'Decimal128(10, 2)'))"),
        ("price in (-1, 2)", "(`price` in (arrow_cast('-1.00', 'Decimal128(10, 2)'), arrow_cast('2.00', 'Decimal128(10, 2)')))"),
        ("`two words` = 5 and excluded.id > ID", "((`two words` = 5) and (excluded.`id` > `id`))"),
        ("s is not null and tags is null and x IS NULL", "((`s` is not null) and (`tags` is null) and (`x` is null))"),
        ("local < timestamp_ntz '1970-01-01 00:00:01.5'", "(`local` < arrow_cast(1500000, 'Timestamp(Microsecond, None)'))"),
    ],
)  # fmt: skip
def test_a_filter_of_exact_comparisons_is_translated(text: str, sql: str) -> None:
    assert as_spark_reads(text, SCHEMA) == sql


@pytest.mark.parametrize("word", ["timestamp ", "TIMESTAMP", "timestamp_ltz", "timestamp  /* at */ "])
@pytest.mark.parametrize(
    ("text", "zone", "micros"),
    [
        ("2026-01-31 12:00:00", "Asia/Tokyo", 1769828400000000),
        ("2026-01-31 12:00:00", "GMT+9", 1769828400000000),
        ("2026-01-31T12:00:00", "+09:00", 1769828400000000),
        ("2026-01-31 12:00:00.000001", "UTC", 1769860800000001),
        ("2026-07-01", "Europe/Berlin", 1782856800000000),
        ("2026-01-31 12:00:00+02:00", None, 1769853600000000),
        ("2026-01-31 12:00:00 -02:00:30", "Asia/Tokyo", 1769868030000000),
        ("2026-01-31 12:00:00Z", "Asia/Tokyo", 1769860800000000),
        ("2024-03-10 02:30:00", "America/Los_Angeles", 1710066600000000),  # does not exist: one hour later
        ("2024-11-03 01:30:00", "America/Los_Angeles", 1730622600000000),  # exists twice: the first
    ],
)
def test_a_timestamp_is_in_the_zone_of_the_session(word: str, text: str, zone: str | None, micros: int) -> None:
    moment = NOON.format(micros)
    assert as_spark_reads(f"at >= {word}'{text}'", SCHEMA, zone=zone) == f"(`at` >= {moment})"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("at > timestamp '2026-01-31 12:00:00'", "option 'timeZone'"),
        ("at > timestamp'2026-01-31 12:00:00'", "option 'timeZone'"),
        ("at > timestamp_ntz '2026-01-31 12:00:00'", "write timestamp '2026-01-31 12:00:00'"),
        ("local > timestamp '2026-01-31 12:00:00+02:00'", "write timestamp_ntz '2026-01-31 12:00:00'"),
        ("local > timestamp '2026-01-31 12:00:00'", "write timestamp_ntz '2026-01-31 12:00:00'"),
        ("at >= date '2026-01-31'", "not a literal of type timestamp"),
        ("at >= date'2026-01-31'", "not a literal of type timestamp"),
        ("day >= timestamp '2026-01-31'", "not a literal of type date"),
        ("day = '2026-01-31'", "not a literal of type date"),
        ("at = '2026-01-31'", "not a literal of type timestamp"),
        ("at = 5", "not a literal of type timestamp"),
        ("at = local", "'at and local'"),
        ("day = date '2026-1-31'", "not a literal"),
        ("day = date '2026-02-30'", "not a literal"),
        ("old > timestamp '2026-01-31 12:00:00Z'", "column 'old' of type timestamp"),
        ("x = 0.5", "column 'x' of type float"),
        ("y > 1", "column 'y' of type double"),
        ("u = 1", "column 'u' of type uint8"),
        ("raw = X'00'", "column 'raw' of type binary"),
        ("s.id = 1", "column 's' of type struct"),
        ("tags = 'a'", "column 'tags' of type list"),
        ("price = 1.505", "not a literal of type decimal"),
        ("price = 15e-1", "not a literal of type decimal"),
        ("id = 1e1", "not a literal of type int64"),
        ("id = 1.0", "not a literal of type int64"),
        ("id = '1'", "not a literal of type int64"),
        ("id = 9223372036854775808", "not a literal of type int64"),
        ("id = 10L", "not a literal"),
        ("id = 0x10", "not a literal"),
        ("id = X'10'", "not a literal"),
        ("id = null", "not a literal"),
        ("id in (1, null)", "not a literal"),
        ("id in ()", "not a literal"),
        ("id in (select 1)", "not a literal"),
        ("name = 5", "not a literal of type string"),
        ("Name = 'a\\nb'", "not a literal of type string"),
        ('Name = "a"', "not a literal of type string"),
        ("Name = r'a'", "'r' before a string"),
        ("Name = 'a' 'b'", "\"'b'\""),
        ("name collate utf8_lcase = 'a'", "'collate'"),
        ("name = 'a' collate utf8_lcase", "'collate'"),
        ("name ilike 'a'", "'ilike'"),
        ("name like 'a!%' escape '!'", "'escape'"),
        ("name like id", "not a literal"),
        ("flag = 1", "not a literal of type bool"),
        ("flag is true", "'true'"),
        ("id <=> 1", "not a literal"),
        ("id is distinct from 1", "'distinct'"),
        ("id / 2 = 1", "'/'"),
        ("id + 1 = 2", "'\\+'"),
        ("id = 1 + 1", "'\\+'"),
        ("id = -(1)", "not a literal"),
        ("5 < id", "'5'"),
        ("(id) = 1", "'\\)'"),
        ("substr(Name, 0, 2) = 'ab'", "'substr'"),
        ("lower(name) = 'a'", "'lower'"),
        ("array_has(tags, 'a')", "'array_has'"),
        ("id = abs(-1)", "'abs'"),
        ("cast(at as string) = 'x'", "'cast'"),
        ("Name::boolean", "':'"),
        ("at < current_timestamp", "not in the table"),
        ("at < now()", "'now'"),
        ("at > timestamp '2026-01-31 12:00:00Z' - interval '1' day", "'-'"),
        ("at > timestamp '2026-01-31 12:00:00.1234567Z'", "not a literal"),
        ("at > timestamp '2026'", "not a literal"),
        ("at > timestamp '2026-01-31 12:00:00 Asia/Tokyo'", "not a literal"),
        ("at > timestamp '0001-01-01 00:00:00+10:00'", "not a literal"),
        ("case when flag then true else false end", "'case'"),
        ("flag xor flag", "'xor'"),
        ("flag && flag", "'&'"),
        ("!flag", "'!'"),
        ("flag = flag = flag", "'='"),
        ("id > 1 /* a /* b */ */", "nested comment"),
        ("id > 1 /*+ hint */", "hint"),
        ("id > 1 -- a\r and id < 0", "-- a"),
        ("id > 1 and", "incomplete"),
        ("id >", "not a literal"),
        ("(id > 1", "incomplete"),
        ("id > 1)", "parenthesis"),
        ("id", "incomplete"),
        ("TWICE = 1", "ambiguous"),
        ("nope = 1", "'nope' is not in the table"),
    ],
)
def test_a_filter_that_may_have_another_meaning_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        as_spark_reads(text, SCHEMA)


def test_a_time_of_day_of_the_past_needs_a_zone() -> None:
    for zone in ("Europe/Amsterdam", "America/Los_Angeles"):
        with pytest.raises(InvalidInputError, match=r"write timestamp '1930-01-01\+00:00'$"):
            as_spark_reads("at > timestamp '1930-01-01'", SCHEMA, zone=zone)
    assert as_spark_reads("at > timestamp '1930-01-01'", SCHEMA, zone="+01:00")


def test_a_local_time_needs_no_word_of_its_own_in_a_fixed_zone() -> None:
    text = "local > timestamp '2026-01-31 12:00:00'"
    for zone in ("UTC", "+09:00"):
        assert as_spark_reads(text, SCHEMA, zone=zone) == as_spark_reads(text.replace("stamp", "stamp_ntz"), SCHEMA)
    with pytest.raises(InvalidInputError, match="timestamp_ntz"):
        as_spark_reads(text, SCHEMA, zone="Asia/Tokyo")


def test_an_error_says_what_to_do() -> None:
    for text in ("lower(name) = 'a'", "x > 0.5", "id = 1e1"):
        with pytest.raises(InvalidInputError, match=r"use \.where\(\.\.\.\) on the DataFrame"):
            as_spark_reads(text, SCHEMA)
        with pytest.raises(InvalidInputError, match=r"MERGE$"):
            as_spark_reads(text, SCHEMA, instead="use MERGE")


def test_a_case_sensitive_session_takes_exact_names_only() -> None:
    assert as_spark_reads("Twice = 1", SCHEMA, case_sensitive=True) == "(`Twice` = 1)"
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
def test_a_long_timestamp_is_refused_fast(filler: str) -> None:
    """Mutated inputs found some that took more than 20 seconds: a long run of spaces was read once per space."""
    with pytest.raises(InvalidInputError, match="not a literal"):
        as_spark_reads(f"at > timestamp '2026-01-31{filler * 200_000}x'", SCHEMA, zone="UTC")


def test_a_filter_that_nests_deep_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="nests"):
        as_spark_reads(f"{'not not (' * 195}flag{')' * 195}", SCHEMA)


ZONE, CASE = "spark.sql.session.timeZone", "spark.sql.caseSensitive"


@pytest.fixture
def session_settings(spark: Any) -> Iterator[Any]:
    """The settings of the session, as they were when the test ends."""
    yield spark.conf
    spark.conf.set(ZONE, "UTC")
    spark.conf.set(CASE, "false")


@pytest.mark.face  # which alone sees the zone of the session
def test_a_filter_means_what_the_same_condition_of_spark_means(spark: Any, uri: str, session_settings: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("At", pa.timestamp("us", tz="UTC"))])
    table = mw.create_table(uri, schema, primary_key="id")
    hours = [dt.datetime(2026, 1, 31, hour, tzinfo=dt.UTC) for hour in range(24)]
    with table.writer() as writer:
        writer.put({"id": range(24), "At": hours})
    session_settings.set(ZONE, "Asia/Tokyo")
    text = "at >= timestamp '2026-01-31 12:00:00' and ID < 20"
    read = spark.read.format("memwal")
    wanted = sorted(row["id"] for row in read.load(uri).where(text).collect())
    assert wanted == list(range(3, 20))
    assert sorted(row["id"] for row in read.option("filter", text).load(uri).collect()) == wanted
    plain = spark.read.format("memwal_py").option("filter", text)
    with pytest.raises(Exception, match="option 'timeZone'"):
        plain.load(uri).count()
    assert plain.option("timeZone", "Asia/Tokyo").option("columns", "AT,id").load(uri).columns == ["At", "id"]
    with pytest.raises(Exception, match=r"use \.where"):
        spark.read.format("memwal").option("filter", "id / 2 = 1").load(uri).count()
    session_settings.set(CASE, "true")
    with pytest.raises(Exception, match="caseSensitive"):
        spark.read.format("memwal").option("filter", "ID = 1").load(uri).count()


NAMED_VALUES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("tiny", pa.int8()),
        ("Name", pa.string()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 37)),
        ("x", pa.float32()),
        ("ready", pa.bool_()),
    ]
)
MARCH = dt.datetime(2024, 3, 10, 9, 30, tzinfo=dt.UTC)  # before the hour that does not exist in Los Angeles
NAMES = ["a", "A", "a%", "", "it's", "\\", "ab\ncd", "\U0001f600", "ä", "a'b", "date '2024-03-10'", None]
FILTERS = r"""
id = 3 | id == 3 | ID <> 3 | id != 3 | 3 < id | id in (1, 2, 300) | id not in (1, 2) | not id in (1, 2) and flag
id between 3 and 5 | id not between 3 and 5 | not (id > 3 or flag) | id > 3 or flag and not ready | tiny = 127
tiny = 300 | tiny > -128 | tiny = ready | id = 1e0 | id = 1.0 | id > 1.5 | id = '3' | id = 3L | id = 0x3 | id = X'03'
id <=> 3 | id <=> null | id = null | id in (1, null) | id not in (1, null) | id = 3 -- and flag | id = 3 /* or true */
id = 3 /* /* */ or true */ | /*+ a */ id = 3 | NOT NOT id = 3 | Name = 'a' | name = 'A' | name = '' | Name = 'it''s'
name = "a" | name = 'a' 'b' | name = '\\' | name = r'a' | name > 'a' | name <= 'ä' | name like 'a%' | name like '_'
name like 'a__c%' | name like 'a\%' | name not like 'a%' | name ilike 'A' | name = 5 | name in ('a', 'A')
name collate utf8_lcase = 'a' | lower(name) = 'a' | name = 'date ''2024-03-10''' | name between 'A' and 'b'
name like '%''%' | flag | not flag | FLAG = TRUE | flag = ready | flag <> ready | flag > ready | flag = 1
flag is true | flag is null | flag IS NOT NULL | day = date '2024-03-10' | day = date'2024-03-10'
DAY >= DATE'2024-03-10' | day = '2024-03-10' | day > timestamp '2024-03-10 00:00:00'
day in (date '2024-03-10', date'1969-12-31') | day > at | date '2024-03-10' = day | day < current_date
day = date '2024-3-10' | at > timestamp '2024-03-10 01:30:00' | at > timestamp'2024-03-10 01:30:00'
at <= TIMESTAMP'2024-03-10 02:30:00' | at > date'2024-03-10' | at = timestamp '2024-03-10 03:30:00-07:00'
at > timestamp '2024-03-10' | at > '2024-03-10' | at > local | at < now() | at > timestamp_ltz'2024-03-10 01:30:00'
at > timestamp_ntz'2024-03-10 01:30:00' | at > timestamp '2024-03-10 03:00:00' - interval '1' hour
local > timestamp '2024-03-10 03:10:00' | local > timestamp_ntz '2024-03-10 03:10:00'
local = timestamp_ntz'2024-03-10 02:30:00' | local > timestamp '2024-03-10 03:10:00Z'
at between timestamp'2024-03-10 01:00:00' and timestamp '2024-03-10 03:59:59.999999' | price = 1.1 | price = 1.10
price > 1.105 | price = 1 | price in (-0.01, 1.1) | price = 11e-1 | price = '1.1' | wide = 5 | wide = 0.1 | x = 0.3
x > 0.3 | x = 0.5 | x > 0 | x = -0.0 | x is null | price / 2 = 0.55 | tiny + 1 = 128 | cast(id as string) = '3'
id::string = '3'
"""


@pytest.mark.face
def test_every_filter_selects_the_rows_of_where_or_is_refused(spark: Any, uri: str, session_settings: Any) -> None:
    table = mw.create_table(uri, NAMED_VALUES, primary_key="id")
    rows = [
        {
            "id": n,
            "tiny": [127, -128, 0, None][n % 4],
            "Name": NAMES[n % 12],
            "flag": [True, False, None][n % 3],
            "day": [dt.date(2024, 3, 10), dt.date(1969, 12, 31), None][n % 3],
            "at": None if n == 1 else MARCH + dt.timedelta(minutes=15 * n),
            "local": None if n == 1 else dt.datetime(2024, 3, 10, 1, 30) + dt.timedelta(minutes=10 * n),
            "price": [Decimal("1.10"), Decimal("-0.01"), Decimal("1.00"), Decimal("1.11"), None][n % 5],
            "wide": [Decimal("0.1"), Decimal(5), Decimal(f"5.{1:037}"), None][n % 4],
            "x": [0.3, 0.5, -0.0, float("nan"), None][n % 5],
            "ready": [True, None, False, False][n % 4],
        }
        for n in range(24)
    ]
    with table.writer() as writer:
        writer.put(pa.Table.from_pylist(rows, NAMED_VALUES))
    zone = "America/Los_Angeles"
    session_settings.set(ZONE, zone)
    translated: dict[str, str] = {}
    for text in (part.strip() for line in FILTERS.strip().splitlines() for part in line.split(" | ")):
        with suppress(mw.InvalidInputError):
            translated[text] = as_spark_reads(text, NAMED_VALUES, zone=zone)
    columns = [f"({text}\n) as c{number}" for number, text in enumerate(translated)]
    answers = spark.read.format("memwal").load(uri).selectExpr("id", *columns).collect()
    for number, (text, sql) in enumerate(translated.items()):
        wanted = sorted(row["id"] for row in answers if row[f"c{number}"])
        assert sorted(table.scan(["id"], sql).to_table().column("id").to_pylist()) == wanted, text
    assert len(translated) > 50


def test_columns_of_a_dataframe_match_whatever_their_case(spark: Any, uri: str, session_settings: Any) -> None:
    table = keyed(uri, 2)
    frame = spark.createDataFrame([(1, "a", 1, "u"), (2, "b", 2, "u")], "ID long, Value string, N int, _OP string")
    frame.write.format("memwal").mode("append").save(uri)
    ms.write_batch(frame.selectExpr("id + 10 as Id", "value VALUE", "n"), uri, 1, app_id="job")
    assert rows_of(table) == {1: ("a", 1), 2: ("b", 2), 11: ("a", 1), 12: ("b", 2)}
    frame.selectExpr("id", "value", "n", "5 as New").write.format("memwal").mode("append").option(
        "mergeSchema", True
    ).save(uri)
    assert mw.open_table(uri).schema.names == ["id", "value", "n", "New"]
    twice = frame.selectExpr("ID as id", "value", "1 as n", "2 as N")
    with pytest.raises(mw.InvalidInputError, match="'n' and 'N'"):
        ms.write_batch(twice, uri, 2, app_id="job")
    session_settings.set(CASE, "true")
    with pytest.raises(mw.InvalidInputError, match="'id' is missing"):
        ms.write_batch(frame, uri, 3, app_id="job")
