"""Documents become the tokens of `lance.tokenize`, whatever the text and the options."""

from __future__ import annotations

import sys

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import Analyzer, AnalyzerOptions, analyzer_for
from lance_memwal.memtable.index.analyzer import _MARK
from tests.kit.text_peer import ANALYZERS, corpus

FAST = ["default", "whitespace", "custom_stop_words", "short_tokens", "accents_kept"]


def _options(analyzer: str) -> AnalyzerOptions:
    return AnalyzerOptions(**ANALYZERS[analyzer])


def _tokens(analyzer: Analyzer, texts: list[str | None]) -> list[list[tuple[str, int]]]:
    """Terms and positions per document, positions counted from the first kept token, as Lance reports them."""
    tokens = analyzer.documents(pa.array(texts, pa.string()))
    each: list[list[tuple[str, int]]] = [[] for _ in texts]
    for document, position, code in zip(tokens.documents, tokens.positions, tokens.codes, strict=True):
        each[document].append((tokens.terms[code], int(position)))
    return [[(term, position - terms[0][1]) for term, position in terms] for terms in each]


def _expected(analyzer: Analyzer, texts: list[str | None]) -> list[list[tuple[str, int]]]:
    options = analyzer.options.lance_options()
    return [
        [(t.text, t.position) for t in lance.tokenize(text, **options)] if text is not None else [] for text in texts
    ]


@pytest.mark.parametrize("name", ANALYZERS)
def test_random_documents_are_split_as_lance_splits_them(name: str) -> None:
    analyzer, texts = Analyzer(_options(name)), corpus(21, 150)
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.none() | st.text(max_size=12), max_size=6))
def test_any_text_is_split_as_lance_splits_it(name: str, texts: list[str | None]) -> None:
    analyzer = analyzer_for(_options(name))
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


@pytest.mark.parametrize("base_tokenizer", ["simple", "whitespace"])
def test_every_character_of_unicode_joins_or_separates_as_in_lance(base_tokenizer: str) -> None:
    analyzer = Analyzer(AnalyzerOptions(base_tokenizer=base_tokenizer, stem=False, remove_stop_words=False))
    codes = [code for code in range(0, sys.maxunicode, 7) if not 0xD800 <= code <= 0xDFFF]
    texts: list[str | None] = [
        " ".join(f"a{chr(code)}b" for code in codes[start : start + 2000]) for start in range(0, len(codes), 2000)
    ]
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


def test_slice_of_an_array_is_split_like_the_array() -> None:
    analyzer = Analyzer(AnalyzerOptions())
    array = pa.array(["drop", "one two", None, "three", "drop"])
    tokens = analyzer.documents(array.slice(1, 3))
    assert [(int(d), tokens.terms[c]) for d, c in zip(tokens.documents, tokens.codes, strict=True)] == [
        (0, "one"),
        (0, "two"),
        (2, "three"),
    ]


@pytest.mark.parametrize("name", ["icu", "icu_split"])
def test_document_that_holds_the_mark_between_documents_is_still_one_document(name: str) -> None:
    analyzer = Analyzer(_options(name))
    texts: list[str | None] = ["one", f"two {_MARK} three", "four"]
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


def test_analyzer_that_removes_every_token_yields_none() -> None:
    analyzer = Analyzer(AnalyzerOptions(max_token_length=1))
    assert _tokens(analyzer, ["a bc", "0"]) == [[], []]


def test_defaults_are_those_of_lances_index() -> None:
    dataset = lance.write_dataset(pa.table({"t": ["word"]}), "memory://analyzer-defaults")
    for base_tokenizer in ("simple", "ngram"):
        dataset.create_scalar_index("t", "INVERTED", base_tokenizer=base_tokenizer, replace=True)
        params = dataset.stats.index_stats("t_idx")["indices"][0]["params"]
        spelled_out = AnalyzerOptions(**{name: params[name] for name in AnalyzerOptions.__dataclass_fields__})
        texts = corpus(22, 50)
        ours, theirs = Analyzer(AnalyzerOptions(base_tokenizer=base_tokenizer)), Analyzer(spelled_out)
        assert _tokens(ours, texts) == _tokens(theirs, texts)


@pytest.mark.parametrize(
    "options",
    [
        {"base_tokenizer": "nonsense"},
        {"base_tokenizer": "code"},
        {"language": "Klingon"},
        {"max_token_length": -1},
        {"base_tokenizer": "ngram", "min_ngram_length": 4, "max_ngram_length": 3},
        {"stem": "yes"},
    ],
)
def test_options_that_lance_does_not_know_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        Analyzer(AnalyzerOptions(**options))  # type: ignore[arg-type]
