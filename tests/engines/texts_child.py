"""Run texts that end the process of Lance or DataFusion, and print how each is answered."""

import sys

import pyarrow as pa

from lance_memwal.engines.sql import query
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.filter import RowFilter

ROWS = pa.table({"id": [1, 2], "b": [True, False], "s": ["x", "y"]})
FILTERS = [
    f"arrow_cast(null, '{'List(' * 10_000}Int64{')' * 10_000}') is null",
    f"`arrow_try_cast` /* quoted */ (null, '{'List(' * 10_000}Int64{')' * 10_000}') is null",
    f"id{' + 1' * 30_000} = 0",
    f"s{' || s' * 3_000} = ''",
    f"$$'$$ = '' or id{' + 1' * 30_000} = 0 or $$'$$ = ''",
    f"E'\\'' = '' or id{' + 1' * 30_000} = 0 or E'\\'' = ''",
    f"/* /* */ ' */ id{' + 1' * 30_000} = 0 -- '",
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
]


def main() -> None:
    for text in FILTERS:
        _ask(text, lambda text=text: RowFilter(text, ROWS.schema).apply(ROWS))  # type: ignore[misc]
    for text in (*CHAINS, *(f"select 1 from t where {text}" for text in FILTERS)):
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
