"""Texts that end the process of Lance or DataFusion, each asked in turn: prints how each is answered."""

from __future__ import annotations

import resource
import sys

import pyarrow as pa

from lance_memwal.engines.sql import query
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.filter import RowFilter

ROWS = pa.table({"id": [1, 2], "b": [True, False], "s": ["x", "y"]})
SIZES = [
    "array_repeat(array_repeat(1, 1000000), 1000000) is null",
    "array_repeat(array_repeat(id, 10000), 10000) is null",
    "repeat('x', 2000000000) = 'y'",
    "repeat(s, id * 1000000000) = 'y'",
    "LPAD('x', 2000000000) = ''",
    "`rpad` /* as a name */ ('x', 2000000000, 'y') = ''",
    "list_resize([1], 100000000000) is null",
    "array_length(range(0, 1000000000)) > 1",
    "generate_series(timestamp '2000-01-01', timestamp '2100-01-01', interval '1 nanosecond') is null",
    "arrow_cast(null, 'FixedSizeList(2000000000, Int64)') is null",
    "arrow_cast(null, 'FixedSizeBinary(2000000000)') is null",
    f"arrow_cast(null, '{'List(' * 10_000}Int64{')' * 10_000}') is null",
    f"{'replace(' * 5}'{'a' * 99}'{(', ' + repr('a') + ', ' + repr('a' * 99) + ')') * 5} = ''",
    f"{'concat_ws(' * 9}'a'{', s' * 20}{(')' + ', s' * 20) * 8}) = ''",
    f"{'encode(' * 40}'a'{(', ' + repr('hex') + ')') * 40} = ''",
    "$$'$$ = '' or lpad('x', 2000000000) = '' or $$'$$ = ''",
    "E'\\'' = '' or lpad('x', 2000000000) = '' or E'\\'' = ''",
    "/* /* */ ' */ lpad('x', 2000000000) = '' -- '",
]
CHAINS = [
    f"select 1 from t where {' or '.join(['b'] * 9_000)}",
    f"select 1 from t where {' and '.join(['b'] * 20_000)}",
    f"select {' or '.join(['true'] * 20_000)}",
    f"select 1 from t where {'(b or ' * 40}{' or '.join(['b'] * 1_990)}{(' or b' * 1_900 + ')') * 40}",
    " intersect ".join(["select 1"] * 500),
    " union all ".join(["select 1"] * 5_000),
    f"select 1 from {', '.join(f't t{n}' for n in range(2_000))}",
    f"select 1 from t {' '.join(f'join t t{n} using (id)' for n in range(2_000))}",
    f"with {', '.join(['c0 as (select 1)', *(f'c{n} as (select * from c{n - 1})' for n in range(1, 3_000))])} select 1",
    f"{'explain ' * 2_000}select 1",
    f"select {'interval ' * 1_900}'1 day'",
    f"select 1{'::int' * 10_000}",
    f"select cast(1 as {'array<' * 10_000}int{'>' * 10_000})",
    "select cast(null as int[2000000000])",
    "select null::int[10000][10000][10000]",
    "select approx_percentile_cont(id, 0.5, 1000000000000) from t",
]


def main() -> None:
    """Ask, with less memory than the texts ask for."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    for text in SIZES:
        _ask(text, lambda text=text: RowFilter(text, ROWS.schema).apply(ROWS))  # type: ignore[misc]
    for text in (*CHAINS, *(f"select 1 from t where {text}" for text in SIZES)):
        _ask(text, lambda text=text: query(text, {"t": ROWS}))  # type: ignore[misc]


def _ask(text: str, ask: object) -> None:
    sys.stdout.write(f"{text[:60]!r}: ")
    sys.stdout.flush()
    try:
        ask()  # type: ignore[operator]
        print("answered")
    except InvalidInputError:
        print("refused")


if __name__ == "__main__":
    main()
