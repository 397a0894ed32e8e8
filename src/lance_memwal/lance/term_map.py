"""The terms of an inverted index of Lance: a sorted map from words to numbers, as a finite state transducer.

Owns the reading of that format (`fst`, versions 2 and 3). Lance has no call that says which number a term has. Invariants:

1. Nothing is unpacked: a look-up reads one node per byte of the term, from the end of the bytes to their beginning.
2. Bytes that are no such map are `CorruptDataError`, those of a version that we do not know `UnsupportedFormatError`; a node
   that points outside of the map is never followed.

A node is read backwards from its address, beginning with its state byte:

    11cccccc  one transition, to the node that ends before this one; c is the input (0: it follows)
    10cccccc  one transition: input (if c is 0), sizes, address, output
    0fnnnnnn  n transitions (0: the number follows, where 1 means 256), f: a term ends here. Then sizes, an index of 256
              bytes if there are more than 32, inputs, addresses, outputs, and the output of the term that ends here

`sizes` holds the bytes per address and per output. An address is the distance from the end of its own node; 0 is the node
without transitions at which a term ends. The number of a term is the sum of the outputs on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lance_memwal.errors import CorruptDataError, UnsupportedFormatError

__all__ = ["TermMap"]

_INPUTS = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHG"  # what a state byte can name
_VERSIONS = {2: 16, 3: 20}  # and the bytes behind the last node
_HEADER_BYTES = 16
_MANY = 32
_END = 0


@dataclass(frozen=True, slots=True)
class _Node:
    """`steps` are (input, address, output), inputs ascending; `final` is the output of the term that ends here."""

    steps: tuple[tuple[int, int, int], ...]
    final: int | None


_EMPTY = _Node((), 0)


class TermMap:
    """A map from terms to numbers."""

    def __init__(self, data: bytes, *, path: str | None = None) -> None:
        """`path` is where the bytes are from, for errors."""
        self._data = data
        self._path = path
        version = int.from_bytes(data[:8], "little")
        if len(data) < _HEADER_BYTES + _VERSIONS[2]:
            raise CorruptDataError("the terms of a text index are cut off", path=path)
        if version not in _VERSIONS:
            raise UnsupportedFormatError(f"terms of a text index in version {version} of their format", path=path)
        end = len(data) - _VERSIONS[version]
        self._root = int.from_bytes(data[end + 8 : end + 16], "little")

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return len(self._data)

    def get(self, term: str) -> int | None:
        """The number of `term`, or None."""
        node, number = self._node(self._root), 0
        for byte in term.encode():
            for label, address, output in node.steps:
                if label == byte:
                    node, number = self._node(address), number + output
                    break
            else:
                return None
        return None if node.final is None else number + node.final

    def near(self, term: str, distance: int, prefix_length: int) -> Iterator[str]:
        """The terms at most `distance` edits from `term` that share its first characters, in the order of their bytes.

        Only branches that can still come near are walked. A row of the edit distances belongs to whole characters: bytes
        are collected until one is complete.
        """
        first = tuple(range(len(term) + 1))
        prefix = term[:prefix_length]
        waiting = [(self._root, "", b"", first)]
        while waiting:
            address, word, rest, row = waiting.pop()
            node = self._node(address)
            if node.final is not None and not rest and row[-1] <= distance and word.startswith(prefix):
                yield word
            for label, target, _ in reversed(node.steps):
                part = rest + bytes([label])
                if len(part) < _character_bytes(part[0]):
                    waiting.append((target, word, part, row))
                    continue
                letter = part.decode(errors="replace")
                if len(word) < len(prefix) and letter != prefix[len(word)]:
                    continue
                next_row = _next_row(row, term, letter)
                if min(next_row) <= distance:
                    waiting.append((target, word + letter, b"", next_row))

    def _node(self, address: int) -> _Node:
        if address == _END:
            return _EMPTY
        if not _HEADER_BYTES <= address < len(self._data):
            raise CorruptDataError("the terms of a text index point outside of their file", path=self._path)
        state = self._data[address]
        if state >> 6 == 3:
            label, at = self._input(state, address)
            return _Node(((label, at - 1, 0),), None)
        if state >> 6 == 2:
            return self._single(state, address)
        return self._several(state, address)

    def _input(self, state: int, address: int) -> tuple[int, int]:
        """The input of a node with one transition, and where what follows it begins (one above it)."""
        named = state & 63
        return (_INPUTS[named - 1], address) if named else (self._data[address - 1], address - 1)

    def _single(self, state: int, address: int) -> _Node:
        label, at = self._input(state, address)
        wide, narrow = divmod(self._data[at - 1], 16)
        at -= 1 + wide
        start = at - narrow
        target = self._address(self._number(at, wide), start)
        return _Node(((label, target, self._number(start, narrow)),), None)

    def _several(self, state: int, address: int) -> _Node:
        count, at = state & 63, address
        if count == 0:
            at -= 1
            count = self._data[at]
            count = 256 if count == 1 else count
        wide, narrow = divmod(self._data[at - 1], 16)
        inputs = at - 1 - (256 if count > _MANY else 0) - count
        addresses = inputs - count * wide
        outputs = addresses - count * narrow
        is_final = bool(state & 64)
        start = outputs - (narrow if is_final else 0)
        if start < 0:
            raise CorruptDataError("a node of a text index begins before its file", path=self._path)
        steps = [
            (
                self._data[inputs + i],
                self._address(self._number(addresses + i * wide, wide), start),
                self._number(outputs + i * narrow, narrow),
            )
            for i in range(count - 1, -1, -1)
        ]
        return _Node(tuple(steps), self._number(start, narrow) if is_final else None)

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._data[at : at + size], "little")

    @staticmethod
    def _address(distance: int, start: int) -> int:
        return _END if distance == 0 else start - distance


def _character_bytes(first: int) -> int:
    """How many bytes a character of UTF-8 has that begins with this one."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _next_row(row: tuple[int, ...], term: str, letter: str) -> tuple[int, ...]:
    """The edit distances of a word that is one letter longer to every beginning of `term`."""
    found = [row[0] + 1]
    for i, other in enumerate(term):
        found.append(min(found[i] + 1, row[i + 1] + 1, row[i] + (other != letter)))
    return tuple(found)
