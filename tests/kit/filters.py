"""Columns of every type, values that evaluators treat differently, every kind of filter, and tables to apply them in."""

import datetime as dt
import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.memtable.index.btree import is_indexable
from lance_memwal.rows.dictionaries import array_of
from tests.kit.tables import nothing_kept

ROWS = 24
_SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
Answer = list[int] | str
_NAN, _INF = float("nan"), float("inf")
_FLOATS = [0.1, -0.0, 0.0, _NAN, _INF, -_INF, 0.3]
_NIGHT, _FIVE = dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 5, 0, 0)
_NIGHT_UTC, _FIVE_UTC = _NIGHT.replace(tzinfo=dt.UTC), _FIVE.replace(tzinfo=dt.UTC)
_JSON = [
    '{"a": 1, "b": "x", "c": [1, 2], "d": null, "e": 1.5, "f": true, "g": {"h": 1}}',
    '{"a": "1"}',
    "[1, 2]",
    '"s"',
]
_DEEP = pa.struct([("deep", pa.int64())])
_POINT = pa.struct([("a", pa.int32()), ("B", pa.string()), ("f", pa.float32()), ("in", _DEEP)])
_STRICT = pa.struct([pa.field("a", pa.int32(), False), pa.field("s", pa.string(), False)])


@dataclass(frozen=True, slots=True)
class Column:
    """A column, its values beside null, and literals to compare it with."""

    name: str
    type: pa.DataType
    values: list[Any]
    literals: str = ""


_WORDS = """timestamp date in select order group case not null true time interval user end array cast left from
    Upper ünï x-y between like is and or any some all exists distinct current_date current_time current_timestamp"""
_MIDNIGHT = "timestamp '2024-01-01 00:00:00'"
COLUMNS = [
    Column("i8", pa.int8(), [-128, 0, 127], "0 | -128 | 127 | 300 | 1.0 | 1.5 | '0'"),
    Column("i16", pa.int16(), [-5, 0, 5], "0 | 5 | 70000"),
    Column("i32", pa.int32(), [-5, 0, 5], "0 | 5 | 1e0"),
    Column("i64", pa.int64(), [-(2**63), 0, 2**63 - 1], "0 | 9223372036854775807 | -9223372036854775807 | 1.0"),
    Column("u8", pa.uint8(), [0, 5, 255], "0 | 5 | -1 | 256"),
    Column("u32", pa.uint32(), [0, 5, 2**32 - 1], "5 | 4294967295 | -1"),
    Column("u64", pa.uint64(), [0, 5, 2**64 - 1], "5 | 18446744073709551615 | -1"),
    Column("f16", pa.float16(), [np.float16(value) for value in _FLOATS], "0.1 | 0 | 0.0 | 1"),
    Column("f32", pa.float32(), _FLOATS, "0.1 | 0.3 | 0.0 | -0.0 | 1 | cast('nan' as float) | 1e39"),
    Column("f64", pa.float64(), _FLOATS, "0.1 | 0.3 | 0.0 | -0.0 | 1 | cast('nan' as double) | cast('inf' as double)"),
    Column(
        "dec",
        pa.decimal128(10, 2),
        [decimal.Decimal(text) for text in ("1.50", "-1.00", "0.00")],
        "1.5 | 1 | 1.505 | cast('1.5' as decimal(10,2)) | '1.50'",
    ),
    Column("d256", pa.decimal256(40, 2), [decimal.Decimal("1.50"), decimal.Decimal("-1.00")], "1.5 | 1"),
    Column("b", pa.bool_(), [True, False], "true | false | 1 | 'true'"),
    Column(
        "s", pa.string(), ["", "a", "A", "it's", "x%y", "日本", "%"], "'' | 'a' | 'it''s' | 'A' | 5 | \"a\" | '日本'"
    ),
    Column("ls", pa.large_string(), ["", "a", "5"], "'' | 'a' | '5'"),
    Column("bin", pa.binary(), [b"", b"a", b"\x00\xff"], "X'' | X'61' | x'00ff' | 'a'"),
    Column("lbin", pa.large_binary(), [b"", b"a"], "X'' | X'61'"),
    Column("fsb", pa.binary(2), [b"ab", b"\x00\xff"], "X'6162' | X'61'"),
    Column(
        "d32",
        pa.date32(),
        [dt.date(2024, 1, 1), dt.date(1969, 12, 31)],
        "date '2024-01-01' | '2024-01-01' | cast('2024-01-01' as date) | timestamp '2024-01-01' | 0",
    ),
    Column("d64", pa.date64(), [dt.date(2024, 1, 1)], "date '2024-01-01' | '2024-01-01'"),
    Column(
        "ts",
        pa.timestamp("us"),
        [_NIGHT, _FIVE.replace(microsecond=1)],
        f"{_MIDNIGHT} | '2024-01-01' | date '2024-01-01' | 0 | timestamp '2024-01-01T00:00:00Z'",
    ),
    Column("tss", pa.timestamp("s"), [_NIGHT, _FIVE], f"{_MIDNIGHT} | timestamp '2024-01-01 00:00:00.5'"),
    Column("tsn", pa.timestamp("ns"), [_NIGHT, _FIVE], _MIDNIGHT),
    Column(
        "tz",
        pa.timestamp("us", "UTC"),
        [_NIGHT_UTC, _FIVE_UTC],
        f"{_MIDNIGHT} | '2024-01-01T00:00:00Z' | timestamp '2024-01-01T00:00:00+02:00'",
    ),
    Column(
        "tzb", pa.timestamp("us", "Europe/Berlin"), [_NIGHT_UTC, _FIVE_UTC], f"{_MIDNIGHT} | '2024-01-01T00:00:00Z'"
    ),
    Column("t64", pa.time64("us"), [dt.time(5), dt.time(0)], "time '05:00:00' | '05:00:00' | cast('05:00:00' as time)"),
    Column(
        "dur",
        pa.duration("us"),
        [dt.timedelta(seconds=1), dt.timedelta(0)],
        "interval '1 second' | 1000000 | arrow_cast(1000000, 'Duration(Microsecond)')",
    ),
    Column("dic", pa.dictionary(pa.int32(), pa.string()), ["k0", "k1", ""], "'k0' | '' | 'zz'"),
    Column("dicl", pa.dictionary(pa.int8(), pa.large_string()), ["k0", "k1"], "'k0'"),
    Column("l", pa.list_(pa.string()), [[], ["a"], ["a", "b", None]], "make_array('a') | array['a']"),
    Column("li", pa.list_(pa.int32()), [[], [1], [1, 2, None]], "make_array(1)"),
    Column("v", pa.list_(pa.float32(), 2), [[0.1, 0.2], [_NAN, 0]], "make_array(0.1, 0.2)"),
    Column(
        "st",
        _POINT,
        [
            {"a": 0, "B": "", "f": 0.1, "in": {"deep": 0}},
            {"a": 1, "B": "x", "f": 0.3, "in": None},
            {"a": None, "B": None, "f": None, "in": {"deep": None}},
        ],
    ),
    Column("sn", _STRICT, [{"a": 0, "s": ""}, {"a": 1, "s": "x"}]),
    Column("j", pa.json_(), _JSON, "'5'"),
    *(Column(word, pa.int32(), [1, 2], "1") for word in _WORDS.split()),
    Column("two words", pa.int32(), [1, 2], "1"),
    Column('say "x"', pa.int32(), [1, 2], "1"),
]


def rows() -> pa.Table:
    """Rows in which every value of every column occurs, and null."""
    fields, arrays = [pa.field("id", pa.int64(), False)], [pa.array(range(ROWS), pa.int64())]
    for number, column in enumerate(COLUMNS):
        choice = [None, *column.values]
        values = [choice[(i * 7 + number) % len(choice)] for i in range(ROWS)]
        if isinstance(column.type, pa.JsonType):
            arrays.append(pa.ExtensionArray.from_storage(column.type, pa.array(values, pa.string())))
        else:
            arrays.append(array_of(values, column.type))
        fields.append(pa.field(column.name, column.type))
    return pa.table(arrays, schema=pa.schema(fields))


_ANY = """
{c} is null | {c} is not null | not ({c} is null) | {c} = {c} | {c} != {c} | {c} in (null) | {c} is distinct from {c}
"""
_COMPARED = """
{c} = {q} | {c} != {q} | {c} < {q} | {c} <= {q} | {c} > {q} | {c} >= {q} | {c} <> {q} | {c} == {q} | {q} < {c} | {q} >= {c}
not ({c} = {q}) | {c} between {q} and {q} | {c} not between {q} and {q} | {c} in ({q}) | {c} in ({q}, null)
{c} not in ({q}) | {c} not in ({q}, null) | {c} is distinct from {q} | {c} is not distinct from {q} | {c} = {q} and id > 3
coalesce({c}, {q}) = {q} | nullif({c}, {q}) is null | ({c} = {q}) is unknown | ({c} = {q}) is not true | ({c} > {q}) is false
not ({c} > {q}) or {c} is null | {c} in ({q}, {q}) | case when {c} = {q} then true else false end
"""
_TEXT = r"""
{c} like 'a%' | {c} ilike 'a%' | {c} not like 'a%' | {c} not ilike 'A' | {c} like '%' | {c} like '' | {c} like 'x\%y'
{c} like '_' | {c} like null | {c} like '%' escape '!' | regexp_match({c}, '^a') | regexp_like({c}, '^a') | {c} ~ 'a'
not regexp_match({c}, 'a') | {c} !~ 'a' | {c} ~* 'a' | lower({c}) = 'a' | upper({c}) = 'A' | length({c}) = 1
starts_with({c}, 'a') | contains({c}, 'a') | substr({c}, 1, 1) = 'a' | {c} || 'x' = 'ax' | concat({c}, 'x') = 'x'
contains_tokens({c}, 'a') | strpos({c}, 'a') = 1 | replace({c}, 'a', 'b') = 'b' | {c} similar to 'a%' | reverse({c}) = 'a'
"""
_BOOLEANS = """
{c} | not {c} | {c} is true | {c} is not true | {c} is false | {c} is not false | {c} is unknown | {c} is not unknown
{c} and {c} | {c} or id = 3 | {c} = not {c} | {c} and null | {c} or null
"""
_NUMBERS = """
isnan({c}) | {c} + 1 > 1 | {c} * 10 = 1 | -{c} < 0 | abs({c}) = 0.1 | round({c}, 1) = 0.1 | cast({c} as int) = 0 | {c} % 2 = 1
cast({c} as double) = 0.1 | cast({c} as float) = 0.1 | cast({c} as string) = '0.1' | {c}::double > 0.1 | 10 / {c} = 2
try_cast({c} as int) = 0 | {c} = f64 | {c} = f32 | {c} > f16 | {c} = i32 | {c} < u64 | {c} = dec | cast({c} as boolean)
{c} & 1 = 1 | cast({c} as tinyint) = 5 | {c} = 5 + 0 | {c} = -(-5) | {c} << 1 = 10 | power({c}, 2) = 25 | {c} + 0.5 = 5.5
"""
_TIMES = """
date_part('hour', {c}) = 5 | extract(year from {c}) = 2024 | date_trunc('day', {c}) = timestamp '2024-01-01'
cast({c} as date) = date '2024-01-01' | cast({c} as string) like '2024%' | {c} + interval '1 day' > timestamp '2024-01-01'
{c} < now() | to_timestamp({c}) > timestamp '2023-01-01' | {c} = ts | {c} > d32 | {c} >= current_date
cast({c} as timestamp) = timestamp '2024-01-01' | cast({c} as bigint) > 0 | to_char({c}, '%Y') = '2024'
"""
_LISTS = """
array_has({c}, 'a') | array_has({c}, 1) | array_contains({c}, 'b') | array_length({c}) = 1 | cardinality({c}) = 0
array_has_any({c}, make_array('a')) | array_has_all({c}, ['a','b']) | {c}[1] = 'a' | {c}[1] = 1 | {c}[1] = 0.1
array_position({c}, 'b') = 2 | array_to_string({c}, ',') = 'a' | array_element({c}, 1) is null | 'a' = any({c})
"""
_STRUCTS = """
{c}.a = 0 | {c}.a is null | {c}.a is not null | not ({c}.a = 1) | {c}.B = '' | {c}.b = '' | {c}.f = 0.1 | {c}.f > 0.3
{c}.in.deep = 0 | {c}.in.deep is null | {c}.in is null | {c}.in is not null | {c}.a in (0, null) | {c}.a not in (0)
{c}.B like 'x%' | {c}.a + 1 = 1 | {c}.a = i32 | {c}.nosuch = 1 | {c}.a between 0 and 0 | {c}.a is distinct from 0
{c}['a'] = 0 | get_field({c}, 'a') = 0 | {c}.`in`.`deep` = 0 | {c}.a.b = 0 | {c}.s = '' | {c}.s is null | `{c}.a` = 0
"""
_DOCUMENTS = """
json_get_int(j, 'a') = 1 | json_get_string(j, 'b') = 'x' | json_get_string(j, 'a') = '1' | json_get_float(j, 'e') > 1
json_get_bool(j, 'f') | json_get_bool(j, 'f') is null | json_exists(j, '$.a') | json_exists(j, '$.d') | j like '%a%'
not json_exists(j, '$.a') | json_extract(j, '$.a') = '1' | json_extract(j, '$.g.h') = '1' | json_get(j, 'a') is null
json_array_contains(j, '$.c', '1') | json_array_length(j, '$.c') = 2 | json_get_int(j, 'g') = 1 | cast(j as string) = '5'
length(j) > 3 | json_get_int(json_get(j, 'g'), 'h') = 1 | json_get_int(j, 'nosuch') is null | contains(j, 'a')
"""
_OTHER = """
true | false | 1 = 1 | null | null = null | id | 'a' | random() < 2 | id in (select 1) | exists (select 1) | count(*) > 0
sum(id) > 1 | id = @x | nosuch = 1 | _tombstone | _tombstone = false | not _tombstone | _distance > 0 | _score > 0 | (id = 5
'abc | id = 'x' | id = 5 -- c | id = 5 /* c */ | id /* ) */ = 5 | id = 5 -- ) | /* c */ id = 5 | id = 5 /* c
memwal_position = 1 | rows.id = 5 | t.id = 5 | id = 0x10 | id = 1e1 | id = .5 | id = 5. | id = E'5' | s = E'a' | s = N'a'
s = $$a$$ | id > 3 AND id < 9 OR id = 20 | id > 3 and (id < 9 or id = 20) | NOT id > 3 | not not id > 3 | id = 5 is true
id > 3 > 2 | upper = 1 | UPPER = 1 | Upper = 1 | `upper` = 1 | `Upper` = 1 | a b = 1 | current_timestamp > ts | id is true
id = all(array[1]) | (id, i32) = (1, 2) | id between 9 and 3 | id between null and 5 | id not between null and 5
arrow_typeof(id) = 'Int64' | arrow_cast(id, 'Int8') = 5 | position('a' in s) = 1 | substring(s from 1 for 1) = 'a'
trim(both 'a' from s) = '' | s collate x = 'a' | ts at time zone 'UTC' > timestamp '2024-01-01' | id = cast(null as bigint)
id = (5) | ((id)) = ((5)) | +id = 5 | id <=> 5 | id = 5 and | and id = 5 | id = = 5 | id like '5%'
"""
# Accepted by Lance, refused by us in every tier: what it means differs from tier to tier, or a part of it is ignored.
REFUSED = """
_rowid = 1 | _rowaddr > 0 | _ROWID > 0 | `_rowid` = 1 | _row_created_at_version > 0 | _row_last_updated_at_version > 0
id = 5) | id = 5 id | id = 5; select 1 | id = 5 limit 1 | id = 5 order by id | id = 1_000
"""


def listed(text: str, **names: str) -> list[str]:
    """The filters of a block, with the names put in."""
    parts = [part.strip() for line in text.strip().splitlines() for part in line.split(" | ")]
    for name, value in names.items():
        parts = [part.replace("{" + name + "}", value) for part in parts]
    return parts


def filters() -> Iterator[str]:
    """Every operator with every type, and what else a filter may say."""
    for column in COLUMNS:
        quoted = f"`{column.name}`"
        for name in [column.name, quoted] if column.name.isidentifier() else [quoted]:
            yield from listed(_ANY, c=name)
            literals = listed(column.literals) if column.literals else []
            for literal in literals:
                yield from listed(_COMPARED, c=name, q=literal)
            if literals:
                yield f"{name} in ({', '.join(literals)})"
    blocks = {
        _TEXT: "s ls dic S",
        _BOOLEANS: "b `b` B",
        _NUMBERS: "f16 f32 f64 i8 i32 i64 u8 u64",
        _TIMES: "ts tss tsn tz tzb d32 d64",
        _LISTS: "l li v",
        _STRUCTS: "st sn `st` ST",
    }
    for block, names in blocks.items():
        for name in names.split():
            yield from listed(block, c=name)
    yield from listed(_DOCUMENTS)
    yield from listed(_OTHER)


def selected_ids(read: Callable[[], pa.Table]) -> Answer:
    """The ids that a read returns, or "refused"."""
    try:
        return sorted(read().column("id").to_pylist())
    except mw.InvalidInputError:
        return "refused"


def lance_ids(dataset: lance.LanceDataset, text: str) -> Answer:
    """The ids that plain Lance selects, or "refused"."""
    try:
        return sorted(dataset.to_table(columns=["id"], filter=text).column("id").to_pylist())
    except (ValueError, OSError, RuntimeError):
        return "refused"


def in_every_tier(uri: str, rows: pa.Table, ask: Callable[[mw.Table], Any]) -> dict[str, Any]:
    """The result of `ask` by tier: all `rows` are in one tier, then in the next."""
    table = mw.create_table(uri, rows.schema, primary_key="id", sharding=mw.Unsharded())
    indexes = [mw.BTreeIndex(field.name) for field in rows.schema if is_indexable(field.type)]
    answers = {}
    with table.shard_writer(**_SETTINGS) as first:
        shard = first.shard_id
    writer = mw.ShardWriter.open(uri, shard_id=shard, indexes=indexes, **_SETTINGS)
    half = rows.num_rows // 2
    writer.put(rows.slice(0, half))
    writer.put(rows.slice(half))
    answers["memtable with BTree indexes"] = ask(table)
    writer.abort()
    answers["tail of the log"] = ask(table)
    table.shard_writer(**_SETTINGS).close()
    answers["SSTable"] = ask(table)
    with nothing_kept():
        answers["SSTable that is not kept"] = ask(table)
    table.compact()
    answers["base table"] = ask(table)
    assert lance.dataset(uri).count_rows() == rows.num_rows
    return answers
