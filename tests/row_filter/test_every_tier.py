"""The same filter selects the same rows in every tier: those that plain Lance selects of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filter_kit
import lance
import pyarrow as pa
import pytest

import memwal as mw
from memwal.index.btree import is_indexable
from memwal.row_filter import RowFilter
from memwal.scan.sstables import SHARED_CACHE
from memwal.testing.profile import scaled

SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
ROWS = filter_kit.rows()
ALL = list(dict.fromkeys(filter_kit.filters()))
TOLD = """
f32 = 0.1 | f32 > 0.3 | f32 in (0.1, 0.3) | f16 = 0.1 | st.a = 0 | st.B = '' | st.a is null | not (st.a = 1) | sn.a = 0
sn.s is null | json_get_int(j, 'a') = 1 | json_exists(j, '$.a') | timestamp is null or timestamp > 1 | date = 1 | in = 1
f64 >= 0.0 | f64 = 0.0 | i8 = 300 | u8 = -1 | dec = 1.5 | s = 5 | l is null | `two words` = 1 | UPPER = 1
"""
Answer = list[int] | str


def asked(read: Callable[[], pa.Table]) -> Answer:
    try:
        return sorted(read().column("id").to_pylist())
    except mw.InvalidInputError:
        return "refused"


def plain(dataset: lance.LanceDataset, text: str) -> Answer:
    try:
        return sorted(dataset.to_table(columns=["id"], filter=text).column("id").to_pylist())
    except (ValueError, OSError, RuntimeError):
        return "refused"


@contextmanager
def sstables_not_kept() -> Iterator[None]:
    limit = SHARED_CACHE.limit_bytes
    SHARED_CACHE.clear()
    SHARED_CACHE.limit_bytes = 0
    try:
        yield
    finally:
        SHARED_CACHE.limit_bytes = limit


def in_every_tier(uri: str, rows: pa.Table, ask: Callable[[mw.Table], Any]) -> dict[str, Any]:
    """What `ask` says while all `rows` are in one tier, then in the next."""
    table = mw.create_table(uri, rows.schema, primary_key="id", sharding=mw.Unsharded())
    indexes = [mw.BTreeIndex(field.name) for field in rows.schema if is_indexable(field.type)]
    answers = {}
    with table.shard_writer(**SETTINGS) as first:
        shard = first.shard_id
    writer = mw.ShardWriter.open(uri, shard_id=shard, indexes=indexes, **SETTINGS)
    half = rows.num_rows // 2
    writer.put(rows.slice(0, half))
    writer.put(rows.slice(half))
    answers["memtable with BTree indexes"] = ask(table)
    writer.abort()
    answers["tail of the log"] = ask(table)
    table.shard_writer(**SETTINGS).close()
    answers["SSTable"] = ask(table)
    with sstables_not_kept():
        answers["SSTable that is not kept"] = ask(table)
    table.compact()
    answers["base table"] = ask(table)
    assert lance.dataset(uri).count_rows() == rows.num_rows
    return answers


def differences(answers: dict[str, list[Answer]], expected: list[Answer], texts: list[str]) -> list[str]:
    return [
        f"{text}: {tier} says {found}, Lance {wanted}"
        for tier, all_found in answers.items()
        for text, found, wanted in zip(texts, all_found, expected, strict=True)
        if found != wanted
    ]


@pytest.mark.scaled
def test_every_operator_selects_the_rows_of_plain_lance_in_every_tier(tmp_path: Path) -> None:
    texts = [*filter_kit.listed(TOLD), *ALL[:: scaled(ci=61, prove=1)]]
    dataset = lance.write_dataset(ROWS, str(tmp_path / "plain"))
    expected = [plain(dataset, text) for text in texts]
    answers = in_every_tier(
        str(tmp_path / "t"),
        ROWS,
        lambda table: [asked(lambda text=text: table.scan(["id"], text).to_table()) for text in texts],  # type: ignore[misc]
    )
    assert differences(answers, expected, texts) == []
    some = [answer for answer in expected if answer != "refused" and 0 < len(answer) < ROWS.num_rows]
    assert len(some) > len(texts) // 3, "answers that are all or nothing prove little"


@pytest.mark.scaled
def test_every_operator_selects_the_rows_of_plain_lance_in_memory(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, str(tmp_path / "plain"))
    texts = ALL[1 :: scaled(ci=37, prove=1)]
    found = [asked(lambda text=text: RowFilter(text, ROWS.schema).apply(ROWS)) for text in texts]  # type: ignore[misc]
    assert differences({"memory": found}, [plain(dataset, text) for text in texts], texts) == []


@pytest.mark.parametrize("text", filter_kit.listed(filter_kit.REFUSED))
def test_what_lance_reads_otherwise_from_tier_to_tier_is_refused(tmp_path: Path, text: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), ROWS.select(["id", "s"]), primary_key="id", sharding=mw.Unsharded())
    plain_rows = lance.dataset(table.uri).to_table(filter=text)
    assert plain_rows.num_rows >= 0  # Lance takes it
    with pytest.raises(mw.InvalidInputError, match="filter"):
        table.scan(filter=text)
