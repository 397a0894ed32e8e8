"""Text to terms, token for token as Lance's inverted index has them.

Owns the analyzer options and the vectorised tokenisation of documents. Invariants:

1. Every term comes out of `lance.tokenize`: stemming, stop words, folding and length limits are Lance's own,
   for every language, so a memtable and the base table's index never disagree about a term.
2. Which characters join into a token is learnt from `lance.tokenize`, never assumed, once per character and process. The split
   itself is a scan over the UTF-8 bytes of the column, without a Python call per row. A token never spans two documents.
3. A token's position is its ordinal among all tokens of its document, removed ones included, so that a phrase
   sees the gap that a stop word leaves.
4. A null document has no tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError

_UNKNOWN, _SEPARATOR, _WORD = 0, 1, 2
_CODE_POINTS = 0x110000
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


@lru_cache(maxsize=8)
def character_classes(base_tokenizer: str) -> CharacterClasses:
    """Return the one table of this base tokenizer."""
    return CharacterClasses(base_tokenizer)


class CharacterClasses:
    """Splits documents into surface forms as one base tokenizer does."""

    def __init__(self, base_tokenizer: str) -> None:
        self._base_tokenizer = base_tokenizer
        ascii_classes = self._ask([chr(code) for code in range(128)])
        self._ascii = bytes(int(word) for word in ascii_classes) + bytes(128)
        self._others: Bytes | None = None
        self._lock = threading.RLock()

    def split(self, strings: pa.Array) -> tuple[Int32s, Int32s, pa.Array]:
        """Return document number, ordinal and surface form of every token of a string array."""
        if strings.null_count:
            strings = strings.fill_null("")
        offsets = np.frombuffer(strings.buffers()[1], np.int32)[strings.offset : strings.offset + len(strings) + 1]
        low, high = (int(offsets[0]), int(offsets[-1])) if len(strings) else (0, 0)
        if low == high:
            empty = np.empty(0, np.int32)
            return empty, empty, pa.array([], pa.string())
        buffer = strings.buffers()[2]
        word = self._word_bytes(np.frombuffer(buffer, np.uint8)[low:high])
        starts, ends = _token_bounds(word, offsets - low)
        documents = (np.searchsorted(offsets, starts + low, side="right") - 1).astype(np.int32)
        return documents, _ordinals(documents), _pieces(buffer, starts + low, ends + low)

    def _word_bytes(self, data: Bytes) -> Bytes:
        """1 for every byte of a character that belongs to a token."""
        word = np.frombuffer(data.tobytes().translate(self._ascii), np.uint8)
        leads = np.flatnonzero(data >= 0xC0)
        if len(leads) == 0:
            return word
        word = word.copy()
        code_points, widths = _decode(data, leads)
        is_word = self._class_of(code_points) == _WORD
        for width in (2, 3, 4):
            chosen = leads[is_word & (widths == width)]
            for i in range(width):
                word[chosen + i] = 1
        return word

    def _class_of(self, code_points: Int32s) -> Bytes:
        """The class of every code point; unknown ones are asked for first."""
        with self._lock:
            if self._others is None:
                self._others = np.zeros(_CODE_POINTS, np.uint8)
            classes = self._others[code_points]
            if not classes.all():
                unknown = np.unique(code_points[classes == _UNKNOWN])
                answers = self._ask([chr(code) for code in unknown.tolist()])
                self._others[unknown] = np.where(answers, _WORD, _SEPARATOR)
                classes = self._others[code_points]
            return classes

    def _ask(self, characters: list[str]) -> list[bool]:
        """Whether Lance keeps each character inside a token: `a?a` comes back whole, or as two tokens `a`."""
        tokens = lance.tokenize(
            " ".join(f"a{character}a" for character in characters),
            base_tokenizer=self._base_tokenizer,
            max_token_length=None,
            lower_case=False,
            stem=False,
            remove_stop_words=False,
            ascii_folding=False,
        )
        answers, i = [], 0
        for _ in characters:
            answers.append(tokens[i].text != "a")
            i += 1 if answers[-1] else 2
        return answers


def _decode(data: Bytes, leads: npt.NDArray[np.intp]) -> tuple[Int32s, Int32s]:
    """Code point and width of the multi-byte characters that begin at `leads`, in valid UTF-8."""
    padded = np.concatenate((data, np.zeros(3, np.uint8)))
    first, second, third, fourth = (padded[leads + i].astype(np.int32) for i in range(4))
    second, third, fourth = second & 0x3F, third & 0x3F, fourth & 0x3F
    two = (first & 0x1F) << 6 | second
    three = (first & 0x0F) << 12 | second << 6 | third
    four = (first & 0x07) << 18 | second << 12 | third << 6 | fourth
    widths = 2 + (first >= 0xE0).astype(np.int32) + (first >= 0xF0)
    return np.choose(widths - 2, (two, three, four)), widths


def _token_bounds(word: Bytes, offsets: Int32s) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Begin and end of every run of word bytes, cut at document borders."""
    before = np.zeros_like(word)
    before[1:] = word[:-1]
    before[offsets[:-1][offsets[:-1] < len(word)]] = 0
    after = np.zeros_like(word)
    after[:-1] = word[1:]
    after[offsets[1:][offsets[1:] > 0] - 1] = 0
    return np.flatnonzero(word > before), np.flatnonzero(word > after) + 1


def _ordinals(documents: Int32s) -> Int32s:
    """0, 1, 2, ... within every run of equal document numbers."""
    indices = np.arange(len(documents), dtype=np.int32)
    first = np.ones(len(documents), bool)
    first[1:] = documents[1:] != documents[:-1]
    return indices - np.maximum.accumulate(np.where(first, indices, 0))


def _pieces(buffer: pa.Buffer, starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]) -> pa.Array:
    """The byte ranges [start, end) of `buffer` as a string array."""
    if len(starts) == 0:
        return pa.array([], pa.string())
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    alternating = pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), buffer)
    return alternating.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))


# ----------------------------------------------------------------------------------------------------------- analyzer


_FAST_TOKENIZERS = ("simple", "whitespace")
_JOINED_TOKENIZERS = ("icu", "icu/split")
_MARK = "0906172839405162"  # stands between documents that are tokenised in one call
_SENTINELS = tuple("0123456789xyz")
_TERM_CACHE_LIMIT = 1_000_000
_FUZZY: dict[str, Any] = {
    "base_tokenizer": "simple",
    "max_token_length": None,
    "lower_case": False,
    "stem": False,
    "remove_stop_words": False,
    "ascii_folding": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerFields:
    """The tokenizer options of Lance's inverted index; None means Lance's default for the base tokenizer."""

    base_tokenizer: str = "simple"
    language: str = "English"
    max_token_length: int | None = 40
    lower_case: bool = True
    stem: bool | None = None
    remove_stop_words: bool | None = None
    custom_stop_words: tuple[str, ...] | None = None
    ascii_folding: bool = True
    min_ngram_length: int = 3
    max_ngram_length: int = 3
    prefix_only: bool = False

    def __post_init__(self) -> None:
        """Freeze the stop words, which may come as a list."""
        if self.custom_stop_words is not None:
            object.__setattr__(self, "custom_stop_words", tuple(self.custom_stop_words))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerOptions(AnalyzerFields):
    """What decides the terms of a text, as one value: equal options share an analyzer."""

    def lance_options(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `lance.tokenize` and of Lance's index builder."""
        options = {name: value for name, value in asdict(self).items() if value is not None}
        options["max_token_length"] = self.max_token_length
        if self.custom_stop_words is not None:
            options["custom_stop_words"] = list(self.custom_stop_words)
        return options

    def validate(self) -> None:
        """Raise InvalidInputError unless Lance can build this analyzer and memwal can mirror it."""
        if self.base_tokenizer == "code":
            raise InvalidInputError("an index with the code analyzer cannot be mirrored in memory")
        try:
            lance.tokenize("word", **self.lance_options())
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInputError(f"Lance refuses the analyzer options: {error}") from error


@dataclass(frozen=True, slots=True)
class DocumentTokens:
    """The tokens of a run of documents: parallel arrays, in document order.

    `codes` index into `terms`, which has no duplicates.
    """

    documents: Int32s
    positions: Int32s
    codes: Int32s
    terms: list[str]


def is_text(data_type: pa.DataType) -> bool:
    """Return whether a column of this type can have a full-text index."""
    t = pa.types
    if t.is_list(data_type) or t.is_large_list(data_type):
        return is_text(data_type.value_type)
    return bool(t.is_string(data_type) or t.is_large_string(data_type) or t.is_string_view(data_type))


@lru_cache(maxsize=64)
def analyzer_for(options: AnalyzerOptions) -> Analyzer:
    """Return the one analyzer with these options, so that memtables share what it learnt."""
    return Analyzer(options)


class Analyzer:
    """Turns texts into terms with one set of options; safe to share between threads."""

    def __init__(self, options: AnalyzerOptions) -> None:
        options.validate()
        self.options = options
        self._lance = options.lance_options()
        self._terms: dict[str, str | None] = {}
        self._classes: CharacterClasses | None = None
        if options.base_tokenizer in _FAST_TOKENIZERS:
            self._classes = character_classes(options.base_tokenizer)
        self._per_word = {**self._lance, "base_tokenizer": "whitespace"}
        self._sentinel = next((s for s in _SENTINELS if self._words(s) == [(s, 0)]), None)

    def __repr__(self) -> str:
        return f"Analyzer({self.options!r})"

    def query_terms(self, text: str) -> list[tuple[str, int]]:
        """Return the terms of a query with their positions, as Lance sees them."""
        return [(token.text, token.position) for token in lance.tokenize(text, **self._lance)]

    @staticmethod
    def fuzzy_terms(text: str) -> list[tuple[str, int]]:
        """Return the words of a fuzzy query with their positions: split, but with no filter, as Lance does it."""
        return [(token.text, token.position) for token in lance.tokenize(text, **_FUZZY)]

    def documents(self, texts: pa.Array) -> DocumentTokens:
        """Return the tokens of `texts`; document numbers count from 0."""
        strings = _as_strings(texts)
        if self._classes is not None:
            return self._split_by_bytes(strings, self._classes)
        if self.options.base_tokenizer in _JOINED_TOKENIZERS and len(strings) > 1:
            tokens = self._split_joined(strings)
            if tokens is not None:
                return tokens
        return self._split_each(strings)

    def _split_by_bytes(self, strings: pa.Array, classes: CharacterClasses) -> DocumentTokens:
        documents, positions, surfaces = classes.split(strings)
        encoded = surfaces.dictionary_encode()
        terms = self._terms_of(encoded.dictionary.to_pylist())
        codes, unique = _number(terms)
        token_codes = codes[encoded.indices.to_numpy()]
        kept = token_codes >= 0
        if not kept.all():
            documents, positions, token_codes = documents[kept], positions[kept], token_codes[kept]
        return DocumentTokens(documents, positions, token_codes, unique)

    def _terms_of(self, surfaces: list[str]) -> list[str | None]:
        """The term of every surface form, or None where a filter removes it."""
        known = self._terms
        unknown = [surface for surface in surfaces if surface not in known]
        if unknown:
            if len(known) + len(unknown) > _TERM_CACHE_LIMIT:
                known = self._terms = {}
                unknown = surfaces
            known.update(zip(unknown, self._filter(unknown), strict=True))
        return [known[surface] for surface in surfaces]

    def _filter(self, surfaces: list[str]) -> list[str | None]:
        """Run the token filters over many surface forms in one call.

        Lance counts positions from the first token that is kept, hence the sentinel in front.
        """
        terms: list[str | None] = [None] * len(surfaces)
        if self._sentinel is None:
            for i, surface in enumerate(surfaces):
                terms[i] = next((term for term, _ in self._words(surface)), None)
            return terms
        for term, position in self._words(" ".join([self._sentinel, *surfaces]))[1:]:
            terms[position - 1] = term
        return terms

    def _words(self, text: str) -> list[tuple[str, int]]:
        return [(token.text, token.position) for token in lance.tokenize(text, **self._per_word)]

    def _split_joined(self, strings: pa.Array) -> DocumentTokens | None:
        """Tokenise all documents in one call; None if the mark between them is not told apart for certain.

        Building an ICU segmenter costs a millisecond per call.
        """
        texts = strings.fill_null("").to_pylist()
        mark = self.query_terms(_MARK)
        tokens = self.query_terms(f"\n{_MARK}\n".join([_MARK, *texts]))
        if len(mark) != 1 or sum(term == mark[0][0] for term, _ in tokens) != len(texts):
            return None
        each: list[list[tuple[str, int]]] = []
        for term, position in tokens:
            if term == mark[0][0]:
                each.append([])
                first = position + 1
            else:
                each[-1].append((term, position - first))
        return _collect(each)

    def _split_each(self, strings: pa.Array) -> DocumentTokens:
        encoded = strings.dictionary_encode()
        each = [self.query_terms(text) for text in encoded.dictionary.to_pylist()]
        codes = encoded.indices.to_pylist()
        return _collect([] if code is None else each[code] for code in codes)


def _number(terms: Sequence[str | None]) -> tuple[Int32s, list[str]]:
    """A code per entry (-1 for None), and the distinct terms that the codes index."""
    codes: dict[str | None, int] = {None: -1}
    numbered = np.fromiter((codes.setdefault(term, len(codes) - 1) for term in terms), np.int32, len(terms))
    return numbered, [term for term in codes if term is not None]


def _collect(each: Iterable[list[tuple[str, int]]]) -> DocumentTokens:
    documents: list[int] = []
    positions: list[int] = []
    terms: list[str] = []
    for document, tokens in enumerate(each):
        for term, position in tokens:
            documents.append(document)
            positions.append(position)
            terms.append(term)
    codes, unique = _number(terms)
    return DocumentTokens(np.array(documents, np.int32), np.array(positions, np.int32), codes, unique)


def _as_strings(texts: pa.Array) -> pa.Array:
    """One UTF-8 string per document; the elements of a list are one document, joined by spaces, as in Lance."""
    data_type = texts.type
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        joined = [_join(elements) for elements in texts.to_pylist()]
        return pa.array(joined, pa.string())
    return texts if pa.types.is_string(data_type) else pc.cast(texts, pa.string())


def _join(elements: list[str | None] | None) -> str | None:
    if elements is None:
        return None
    document = ""
    for element in elements:
        if element is not None:
            document = f"{document} {element}" if document else element
    return document
