"""Lives with faults in several processes.

Owns `Workers`. Every process has a place of its own, and every unit of work a directory in it, which on a local store is removed
afterwards. What came of the lives comes back as a `Sweep`, in the order in which they ended.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.pool import Pool
from typing import Any, Final, Self

from tests.kit.table_faults import First, Planned, Sweep
from tests.kit.table_life import CanonicalLife, Place

Unit = Planned | First
_AT_ONCE: Final = 8


class Workers:
    """`jobs` processes, one for each of `places`; with none, lives happen here."""

    def __init__(self, places: Sequence[Place], jobs: int) -> None:
        self._here = _Worker(places[0])
        self._pool: Pool | None = None
        if jobs:
            context = multiprocessing.get_context("spawn")
            waiting = context.SimpleQueue()
            for place in places:
                waiting.put(place)
            self._pool = context.Pool(jobs, _begin, (waiting,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    def live(self, life: type[CanonicalLife], units: Iterable[Unit]) -> Iterator[Sweep]:
        """What came of every unit: of one plan, or of all pairs with one first fault."""
        if self._pool is None:
            return (self._here.live(life, unit) for unit in units)
        return self._pool.imap_unordered(partial(_live_there, life), units, _AT_ONCE)


class _Worker:
    """Lives one unit after another at `place`."""

    def __init__(self, place: Place) -> None:
        self._place, self._numbers = place, itertools.count()

    def live(self, life: type[CanonicalLife], unit: Unit) -> Sweep:
        place = replace(self._place, prefix=f"{self._place.prefix}/{next(self._numbers):06d}")
        sweep = Sweep(place, life)
        if isinstance(unit, First):
            for planned in unit.followed(sweep):
                sweep.live(planned)
        else:
            sweep.meet(unit)
        if "://" not in place.prefix:
            shutil.rmtree(place.prefix, ignore_errors=True)
        return sweep


_there: _Worker


def _begin(waiting: Any) -> None:
    global _there
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.getLogger("lance_memwal").setLevel(logging.CRITICAL + 1)
    _there = _Worker(waiting.get())


def _end_with_parent() -> None:
    """Leave nothing behind where whoever began this process was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _live_there(life: type[CanonicalLife], unit: Unit) -> Sweep:
    return _there.live(life, unit)
