"""Terms within an edit distance.

Owns one vectorised computation, over all candidate terms at once. Invariant: distance counts insertions, deletions
and substitutions of code points (Levenshtein, no transpositions), as Lance's automaton does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def auto_fuzziness(term: str) -> int:
    """Return the edit distance that Lance chooses for a term by its length in bytes."""
    length = len(term.encode())
    return 0 if length <= 2 else 1 if length <= 5 else 2


def within_distance(terms: Sequence[str], term: str, distance: int, prefix_length: int) -> list[str]:
    """Return those of `terms` at most `distance` edits from `term` that share its first characters, sorted."""
    prefix = term[:prefix_length]
    near = [other for other in terms if abs(len(other) - len(term)) <= distance and other.startswith(prefix)]
    if distance == 0 or not near:
        return sorted(other for other in near if other == term)
    edits = _edit_distances(near, term)
    return sorted(other for other, edit in zip(near, edits.tolist(), strict=True) if edit <= distance)


def _edit_distances(terms: list[str], term: str) -> npt.NDArray[np.int32]:
    """The edit distance of every one of `terms` to `term`, one row of the dynamic program per character."""
    lengths = np.array([len(other) for other in terms], dtype=np.int32)
    width = max(int(lengths.max()), 1)
    letters = np.array(terms, dtype=f"U{width}").view(np.uint32).reshape(len(terms), width)
    row = np.tile(np.arange(width + 1, dtype=np.int32), (len(terms), 1))
    for i, letter in enumerate(term, start=1):
        previous, row = row, np.empty_like(row)
        row[:, 0] = i
        substituted = previous[:, :-1] + (letters != ord(letter))
        best = np.minimum(substituted, previous[:, 1:] + 1)
        for j in range(width):
            np.minimum(best[:, j], row[:, j] + 1, out=row[:, j + 1])
    return row[np.arange(len(terms)), lengths]
