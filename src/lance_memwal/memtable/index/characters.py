"""Where tokens begin and end: a scan over UTF-8 bytes.

Owns the table of which characters belong to a token, per base tokenizer. Invariants:

1. The table is learnt from `lance.tokenize`, never assumed; a character is asked for once per process.
2. A token never spans two documents.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["CharacterClasses", "character_classes"]

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
