"""The files of Lance's inverted index, as we read them: terms, posting lists, and the best documents of some lists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader

from benchmarks.texts import Texts
from lance_memwal.errors import CorruptDataError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.posting_list import read_postings
from lance_memwal.lance.term_map import TermMap
from lance_memwal.lance.text_index import TextPart, open_segment
from lance_memwal.memtable.index import CorpusStats
from lance_memwal.memtable.index.fuzzy import within_distance
from lance_memwal.read.best_texts import TermDocuments, Wanted, all_documents, best_documents, common_documents
from lance_memwal.store.location import resolve

WORDS = ["a", "aa", "ab", "abc", "b", "bä", "bär", "hund", "ハンド", "ハン", "z" * 30, "🦉", "🦉🦉", "Ω1"]


def index_of(path: Path, texts: list[str], **options: Any) -> TextPart:
    """The only part of an index that Lance made over `texts`, whose words are its terms."""
    dataset = lance.write_dataset(pa.table({"t": pa.array(texts)}), str(path / "t"), mode="overwrite")
    plain = {"base_tokenizer": "whitespace", "stem": False, "remove_stop_words": False, "ascii_folding": False}
    dataset.create_scalar_index("t", "INVERTED", **{**plain, "lower_case": False, **options})
    base = BaseTable.need(resolve(str(path / "t")))
    segment = open_segment(base, base.index_entries[0])
    assert segment.fragments == {0}
    (part,) = segment.parts
    return part


def term_bytes(path: Path) -> bytes:
    (file,) = path.glob("t/_indices/*/part_0_tokens.lance")
    return bytes(LanceFileReader(str(file)).read_all().to_table().column(0)[0].as_py())


# ---------------------------------------------------------------------------------------------------------------- terms


def test_every_term_has_its_number_and_no_other_word_has_one(tmp_path: Path) -> None:
    words = [*WORDS, *(chr(code) for code in range(33, 127)), *Texts(3_000).words.to_pylist()]
    index_of(tmp_path, [" ".join(words)])
    terms = TermMap(term_bytes(tmp_path))
    numbers = [terms.get(word) for word in dict.fromkeys(words)]
    assert sorted(number for number in numbers if number is not None) == list(range(len(numbers)))
    for word in ("", "abcd", "hun", "hunds", "🦉🦉🦉", "ハ"):
        assert terms.get(word) is None


def test_terms_within_an_edit_distance_are_those_of_the_definition(tmp_path: Path) -> None:
    words = [*WORDS, *Texts(2_000).words.to_pylist()]
    index_of(tmp_path, [" ".join(words)])
    terms = TermMap(term_bytes(tmp_path))
    for word in ("bär", "bar", "🦉", "hand", "ハンド", *words[100:110]):
        for distance, prefix in ((0, 0), (1, 0), (2, 0), (2, 2), (1, 1)):
            near = list(terms.near(word, distance, prefix))
            assert near == sorted(near, key=str.encode)
            assert sorted(near) == within_distance(words, word, distance, prefix)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_terms_are_an_error_or_another_answer_but_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "terms"
    if not path.exists():
        index_of(path, [" ".join(WORDS)])
    whole = bytearray(term_bytes(path))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        terms = TermMap(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
        for word in WORDS:
            terms.get(word)
        list(terms.near("abc", 2, 0))
    except (CorruptDataError, UnsupportedFormatError):
        pass


# -------------------------------------------------------------------------------------------------------- posting lists


def test_posting_lists_say_which_documents_have_a_term_and_how_often(tmp_path: Path) -> None:
    texts = Texts(200).rows(0, 3_000, 1)["t"].to_pylist()
    texts[700] = " ".join(["often"] * 5_000)
    part = index_of(tmp_path, texts)
    counts = [Counter(text.split()) for text in texts]
    assert part.lengths.tolist() == [sum(count.values()) for count in counts]
    for word in ["often", *Texts(200).words.to_pylist()]:
        expected = [(i, count[word]) for i, count in enumerate(counts) if word in count]
        found = part.postings(word)
        pairs = zip(found.documents.tolist(), found.frequencies.tolist(), strict=True) if found is not None else ()
        assert list(pairs) == expected
    assert part.postings("nosuch") is None
    assert part.documents_of(np.array([5, 2_999, 3_000, 1 << 40])).tolist() == [5, 2_999]


def _blocks(length: int) -> tuple[pa.Array, int]:
    """A list of `length` postings as Lance packs it, and the number of documents."""
    documents = np.arange(0, 3 * length, 3)
    tail = np.concatenate((documents[:1], np.diff(documents), np.ones(length, np.int64)))
    return pa.array([b"\0\0\0\0" + _as_varints(tail)], pa.large_binary()), 3 * length


def _as_varints(numbers: Any) -> bytes:
    out = bytearray()
    for number in map(int, numbers):
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


def test_a_posting_list_that_does_not_hold_together_is_corrupt() -> None:
    blocks, documents = _blocks(100)
    assert len(read_postings(blocks, 100, documents, tail_codec="varint_delta_v1")) == 100
    whole = blocks[0].as_py()
    for data, length, among in (
        (whole, 100, documents - 3),  # a document that is not there
        (whole, 99, documents),
        (whole, 129, documents),
        (whole[:-1], 100, documents),
        (whole[:50], 100, documents),
        (b"", 100, documents),
        (whole[:4] + b"\x80" * 8 + whole[12:], 100, documents),
        (b"\0" * 4 + b"\0" * 200, 100, documents),  # the same document again, and no frequency
    ):
        with pytest.raises(CorruptDataError):
            read_postings(pa.array([data], pa.large_binary()), length, among, tail_codec="varint_delta_v1")


def test_a_layout_that_is_not_known_is_unsupported_not_corrupt(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError):
        index_of(tmp_path, ["amber"], block_size=256)


# -------------------------------------------------------------------------------------------------- the best documents


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32), terms=st.integers(1, 4), k=st.sampled_from([1, 3, 10, 50]))
def test_what_is_skipped_is_never_among_the_best(seed: int, terms: int, k: int) -> None:
    """By other statistics than those that the bounds are made of, with dead documents, against scoring everything."""
    rng = np.random.default_rng(seed)
    documents = int(rng.choice([60, 3_000, 20_000, 130_000]))
    lengths = np.clip(rng.lognormal(3, 0.7, documents), 1, 500).astype(np.int32)
    own = CorpusStats(documents, int(lengths.sum()))
    stats = CorpusStats(documents + 100, int(lengths.sum() * rng.uniform(0.7, 1.4)))
    alive = rng.random(documents) < 0.9
    wanted = []
    for _ in range(terms):
        chosen = np.flatnonzero(rng.random(documents) < rng.choice([0.002, 0.1, 0.8])).astype(np.int32)
        if len(chosen):
            often = rng.geometric(0.6, len(chosen)).astype(np.uint8)
            wanted.append(Wanted(TermDocuments.build(chosen, often, lengths, own), float(rng.uniform(0.1, 9))))
    expected = np.zeros(documents)
    for one in wanted:
        expected[one.term.documents] += one.factor * one.term.weights(stats, slice(None))
    expected[~alive] = 0
    found, scores = best_documents(wanted, stats, k, alive)
    np.testing.assert_allclose(scores, expected[found])
    np.testing.assert_allclose(np.sort(scores)[::-1][:k], np.sort(expected[expected > 0])[::-1][:k])
    everything, scores = all_documents(wanted, stats, alive)
    assert everything.tolist() == np.flatnonzero(expected > 0).tolist()
    np.testing.assert_allclose(scores, expected[everything])
    both, scores = common_documents([[one] for one in wanted], stats, alive)
    in_all = np.logical_and.reduce([np.isin(np.arange(documents), one.term.documents) for one in wanted] or [~alive])
    assert both.tolist() == np.flatnonzero(in_all & alive).tolist()
    np.testing.assert_allclose(scores, expected[both])
