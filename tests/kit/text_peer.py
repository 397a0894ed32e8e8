"""Lance's own full-text search as the oracle."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, get_args

import lance
import pyarrow as pa

from lance_memwal.memtable.index import FtsIndex, FtsMemIndex, TextQuery, query, to_lance

_names = itertools.count()

PLAIN = """hello Hello help world the of running runs run apple apply apples tree trie baz don't 42 3.14 and over
quick quicker foo-bar _x_ C++"""
FOREIGN = "naïve straße O\u2019Reilly 日本 日本語 \U0001f600 \ufb01ne Ünïcode İstanbul हिन्दी a\u0301b \u00bd"
WORDS = [*PLAIN.split(), *FOREIGN.split()]

ANALYZERS: dict[str, dict[str, Any]] = {
    "default": {},
    "unstemmed": {"stem": False},
    "with_stop_words": {"remove_stop_words": False},
    "custom_stop_words": {"custom_stop_words": ("hello", "0", "quick")},
    "case_sensitive": {"lower_case": False},
    "accents_kept": {"ascii_folding": False},
    "short_tokens": {"max_token_length": 5},
    "any_length": {"max_token_length": None},
    "german": {"language": "German"},
    "greek": {"language": "Greek"},
    "arabic": {"language": "Arabic"},
    "whitespace": {"base_tokenizer": "whitespace"},
    "raw": {"base_tokenizer": "raw"},
    "ngram": {"base_tokenizer": "ngram"},
    "ngram_prefix": {"base_tokenizer": "ngram", "min_ngram_length": 2, "max_ngram_length": 4, "prefix_only": True},
    "icu": {"base_tokenizer": "icu"},
    "icu_split": {"base_tokenizer": "icu/split"},
}


def corpus(seed: int, rows: int, words: Sequence[str] = WORDS) -> list[str | None]:
    """Random texts, some of them null, empty or without a token."""
    rng = random.Random(seed)

    def text() -> str | None:
        if rng.random() < 0.05:
            return rng.choice([None, "", " ", "...", "the"])
        separator = rng.choice([" ", " ", " ", ", ", "\n", "; "])
        return separator.join(rng.choice(words) for _ in range(rng.randint(1, 14)))

    return [text() for _ in range(rows)]


def peer(texts: Sequence[Any], data_type: pa.DataType | None = None, **options: Any) -> lance.LanceDataset:
    """A Lance dataset with an inverted index over `texts` (column t, row number in i)."""
    table = pa.table({"i": pa.array(range(len(texts)), pa.int64()), "t": pa.array(texts, data_type or pa.string())})
    dataset = lance.write_dataset(table, f"memory://text-peer-{next(_names)}")
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    dataset.create_scalar_index("t", "INVERTED", with_position=True, **options)
    return dataset


def ours(
    texts: Sequence[Any], batch_rows: int = 37, data_type: pa.DataType | None = None, **options: Any
) -> FtsMemIndex:
    """Our index over the same texts, put in by small batches, with queries in between."""
    data_type = data_type or pa.string()
    index = FtsIndex("t", **options).build(pa.schema([("t", data_type)]))
    for start in range(0, len(texts), batch_rows):
        batch = pa.record_batch([pa.array(texts[start : start + batch_rows], data_type)], names=["t"])
        index.insert(batch, start)
        if start % 3 == 0:
            index.catch_up()
    return index


def peer_hits(dataset: lance.LanceDataset, asked: TextQuery) -> dict[int, float]:
    """Row number to score, all rows that Lance finds."""
    scanner = dataset.scanner(full_text_query=to_lance(asked), columns=["i", "_score"], limit=100_000)
    table = scanner.to_table()
    return dict(zip(table["i"].to_pylist(), table["_score"].to_pylist(), strict=True))


def random_query(rng: random.Random, depth: int = 0, slops: Sequence[int] = (0,)) -> TextQuery:
    """Any query that Lance has, over column t."""

    def text() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))

    kind = rng.random()
    if depth < 2 and kind < 0.2:
        parts: dict[str, list[TextQuery]] = {"must": [], "should": [], "must_not": []}
        for _ in range(rng.randint(1, 4)):
            parts[rng.choice(list(parts))].append(random_query(rng, depth + 1, slops))
        if not parts["must"] and not parts["should"]:
            parts["should"].append(random_query(rng, depth + 1, slops))
        return query.Boolean(**{name: tuple(some) for name, some in parts.items()})
    if depth < 2 and kind < 0.3:
        positive, negative = random_query(rng, depth + 1, slops), random_query(rng, depth + 1, slops)
        return query.Boost(positive, negative, negative_boost=rng.choice([0.1, 0.5, 2.0]))
    if kind < 0.5:
        return query.Phrase(text(), "t", slop=rng.choice(slops))
    operator = rng.choice(get_args(query.Operator))
    if kind < 0.7:
        return query.Match(
            text(),
            "t",
            fuzziness=rng.choice([1, 2]),
            max_expansions=rng.choice([2, 5, 50]),
            prefix_length=rng.choice([0, 0, 1, 2]),
            operator=operator,
        )
    return query.Match(text(), "t", operator=operator, boost=rng.choice([1.0, 2.5]))
