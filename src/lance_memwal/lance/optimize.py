"""What Lance itself does to keep a base table in shape: indexes take in new rows, small files become one, old versions go.

Owns the calls, and which files are worth rewriting. Invariants:

1. Rows, marks and the MemWAL index stay as they are: whoever reads sees the same rows before and after.
2. A commit that lost a race changes nothing and is no error; the caller sees that it was not made, and decides.
3. A row is rewritten a logarithm of times in the long run: files of a size are merged with each other, not a big one with
   a small one again and again.
4. Indexes come before files: Lance merges only files that the same parts of every index cover. A rewrite of files drops what
   is recorded of how far indexes have caught up (seen with pylance 14.0.2); bringing them up to date records it again.
5. What is brought up to date finds a row by its newest values alone, also where rows keep their ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.damage import version_times
from lance_memwal.lance.details import INDEX_NAME
from lance_memwal.lance.manifest import Fragment

_TARGET_ROWS = 1 << 20
_FEWEST_FILES = 8
_SAME_SIZE = 2  # a file joins smaller ones if it has at most so many times the rows that they have together
_MANY_DELETED = 0.1
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Rewritten:
    """How many files a rewrite took away and made."""

    removed: int = 0
    added: int = 0


def index_parts(base: BaseTable) -> dict[str, int]:
    """The user's indexes by name, and of how many parts each of them is: every one adds to the cost of a search."""
    return dict(Counter(entry.name for entry in base.index_entries if entry.name != INDEX_NAME))


def optimize_indexes(base: BaseTable, *, merge: bool = False) -> tuple[BaseTable, bool]:
    """The newest version after an attempt to bring all indexes up to date, and whether it was made.

    Lance records with it how far they have caught up, and commits nothing where there is nothing to do. With `merge` each
    index is of one part afterwards. With stable row ids it always is: a row that was replaced keeps its id, and an older
    part would still find it by what it was (seen with pylance 14.0.2 in text and bitmap indexes).
    """
    parts = max(index_parts(base).values(), default=0)
    if not parts:
        return base, True
    made = False

    def optimize() -> None:
        nonlocal made
        must_merge = merge or (base.manifest.has_stable_row_ids and _lag(base))
        # left to itself, Lance joins the partitions of small vector indexes: 0.4 of the nearest ten were found then
        base.handle().optimize.optimize_indices(num_indices_to_merge=parts if must_merge else 0)
        made = True

    newest = base.attempt("bringing the indexes of the base table up to date", optimize)
    return newest, made


def _lag(base: BaseTable) -> bool:
    """Whether an index does not have all fragments: merging those that have rewrites some for nothing."""
    fragments = frozenset(base.fragment_messages)
    indexes = [index for index in base.handle().describe_indices() if index.name != INDEX_NAME]
    return any(fragments - {n for segment in index.segments for n in segment.fragment_ids} for index in indexes)


def crowded(fragments: Sequence[Fragment]) -> frozenset[int]:
    """The fragments that are worth rewriting: many small ones of about a size, and those with many deleted rows.

    Of 2000, 100, 100, ... rows (eight times 100) the eight are chosen, since the first has more than twice what they have
    together.
    """
    deleted = {f.id for f in fragments if _deleted(f) >= _MANY_DELETED * f.physical_rows > 0}
    small = sorted((f.physical_rows - _deleted(f), f.id) for f in fragments if f.physical_rows < _TARGET_ROWS)
    chosen: set[int] = set()
    rows = 0
    for live_rows, number in small:
        if chosen and live_rows > _SAME_SIZE * rows:
            break
        chosen.add(number)
        rows += live_rows
    return frozenset(deleted | chosen if len(chosen) >= _FEWEST_FILES else deleted)


def _deleted(fragment: Fragment) -> int:
    return 0 if fragment.deletion is None else fragment.deletion.num_deleted_rows


def rewrite_files(base: BaseTable, chosen: Collection[int]) -> tuple[BaseTable, Rewritten | None]:
    """The newest version after an attempt to rewrite these fragments, and what was done; None: others were faster."""
    done: Rewritten | None = None
    others = [number for number in base.fragment_messages if number not in chosen]

    def rewrite() -> None:
        nonlocal done
        optimizer = base.handle().optimize
        metrics = optimizer.compact_files(excluded_fragment_ids=others, num_threads=_THREADS)
        done = Rewritten(int(metrics.files_removed), int(metrics.files_added))

    return base.attempt("rewriting files of the base table", rewrite), done


def old_versions(base: BaseTable, before_ms: int) -> list[int]:
    """The versions below `base` that were not the newest one any more at `before_ms`, ascending."""
    written = version_times(base.location)
    versions = sorted(version for version in written if version <= base.version)
    return [version for version, following in pairwise(versions) if written[following] <= before_ms]


def remove_versions(base: BaseTable, versions: Sequence[int]) -> int:
    """Remove these versions and the files that no other version has; those with a tag stay. Returns how many went."""
    if not versions:
        return 0
    with lance_errors("removing old versions of the base table"):
        stats = base.handle().cleanup_old_versions(versions=list(versions), error_if_tagged_old_versions=False)
    return int(stats.old_versions)
