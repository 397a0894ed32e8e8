"""Reports of commits to the progress listener, which runs in another process of the same host.

A report is a file in a directory of this user. Spark reports rows and times of a batch, but a Python sink cannot add to them, for
example that the table had the batch already. Invariants:

1. A sink writes reports only for a run that a listener announced. The listener removes its files.
2. A report that cannot be written or read is logged, and never fails a commit or a query.
3. The directory belongs to this user alone; a directory of another user is not used.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

_LOG = logging.getLogger(__name__)
_RUN = re.compile(r"[0-9a-f-]{36}")


class _Appended(Protocol):
    """What is told of one append, wherever it was made."""

    @property
    def rows(self) -> int: ...
    @property
    def skipped(self) -> bool: ...
    @property
    def rejected_rows(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BatchStats:
    """One commit: rows and bytes written, shards touched, those of them that had this batch already, and rows kept out."""

    rows: int = 0
    size_bytes: int = 0
    shards: int = 0
    skipped_shards: int = 0
    rejected_rows: int = 0

    @classmethod
    def of(cls, results: Sequence[_Appended], sizes: Sequence[int]) -> BatchStats:
        """The sum over the appends of one batch; `sizes` are their bytes."""
        written = [(result, size) for result, size in zip(results, sizes, strict=True) if not result.skipped]
        rows, size_bytes = sum(result.rows for result, _ in written), sum(size for _, size in written)
        rejected = sum(result.rejected_rows for result, _ in written)
        return cls(rows, size_bytes, len(results), len(results) - len(written), rejected)

    def __add__(self, other: BatchStats) -> BatchStats:
        return BatchStats(
            self.rows + other.rows,
            self.size_bytes + other.size_bytes,
            self.shards + other.shards,
            self.skipped_shards + other.skipped_shards,
            self.rejected_rows + other.rejected_rows,
        )

    @property
    def is_skipped(self) -> bool:
        """Whether the table had the whole batch already."""
        return 0 < self.shards == self.skipped_shards


def announce(run: str) -> None:
    """From now on reports of this run are wanted."""
    root = _root()
    try:
        os.makedirs(root, mode=stat.S_IRWXU, exist_ok=True)
        if _is_ours(root):
            os.makedirs(_directory(run), mode=stat.S_IRWXU, exist_ok=True)
    except OSError as error:
        _LOG.warning("skipped batches of run %s will not be counted: %s", run, error)


def report(run: str | None, batch: int, stats: BatchStats) -> None:
    """Leave what one commit did, if somebody wants to know; several commits of one batch add up."""
    if run is None or _RUN.fullmatch(run) is None or not _is_ours(_root()) or not os.path.isdir(_directory(run)):
        return
    path, before = _path(run, batch), collect(run, batch)
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(asdict(stats if before is None else before + stats), file)
        os.replace(f"{path}.new", path)
    except OSError as error:
        _LOG.warning("the report of batch %d could not be left [run=%s]: %s", batch, run, error)


def collect(run: str, batch: int) -> BatchStats | None:
    """What the commit of a batch left, and remove it; None if it left nothing, as an empty batch does."""
    if _RUN.fullmatch(run) is None or not _is_ours(_root()):
        return None
    path = _path(run, batch)
    try:
        with open(path, encoding="utf-8") as file:
            found = BatchStats(**json.load(file))
        os.unlink(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        _LOG.warning("the report of batch %d cannot be read [run=%s]: %s", batch, run, error)
        return None
    return found


def retire(run: str) -> None:
    """No more reports of this run are wanted."""
    if _RUN.fullmatch(run) is not None and _is_ours(_root()):
        shutil.rmtree(_directory(run), ignore_errors=True)


def _root() -> str:
    return os.path.join(tempfile.gettempdir(), f"memwal-progress-{os.getuid()}")


def _directory(run: str) -> str:
    return os.path.join(_root(), run)


def _path(run: str, batch: int) -> str:
    return os.path.join(_directory(run), str(batch))


def _is_ours(root: str) -> bool:
    try:
        found = os.lstat(root)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
