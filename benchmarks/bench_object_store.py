"""Puts on an object store that answers after 10, 50 or 200 ms, and what every operation takes there.

The limit of a put is one request: encode, and a create-only put. With eight threads each of the limit's has a request
of its own under way; ours share entries, since an entry is only written when the one before it is stored. Tables are
made before the wait begins.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial

from benchmarks import rivals
from benchmarks.harness import APPEND, LIMIT, Bench, Case, Sample
from benchmarks.object_store import Service, running_service
from benchmarks.rivals import Place, Put, Rival
from benchmarks.store_costs import Requests

_WAITS_MS = (10, 50, 200)
_PUTS_PER_TURN, _FEW_PUTS = 8, 4
_numbers = itertools.count()


def cases() -> Iterator[Case | Requests]:
    """Puts, then operations, for every wait."""
    for wait in _WAITS_MS:
        for threads in (1, 8):
            named = {
                name: partial(_put, rival, wait, threads)
                for name, rival in (("ours", rivals.ours), ("peer", rivals.peer), (LIMIT, rivals.limit))
            }
            others = {LIMIT: named[LIMIT]}
            if threads == 1:
                others[APPEND] = partial(_put, rivals.append, wait, threads)
            name = f"object store, {wait} ms: put of 20 rows, {threads} thread{'' if threads == 1 else 's'}"
            late = wait == _WAITS_MS[-1]
            yield Case(name, named["ours"], named["peer"], None, "puts/s", 3, others=others, full_only=late)
    for wait in _WAITS_MS:
        yield Requests(f"object store, {wait} ms: every operation", wait, full_only=wait != _WAITS_MS[0])


@cache
def _service() -> Service:
    """One service for all puts of the process, which it ends with."""
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    return until_the_end.enter_context(running_service())


def _put(rival: Rival, wait_ms: int, threads: int, bench: Bench) -> Sample:
    service = _service()
    place = Place(service.uri(f"table-{next(_numbers)}"), options=service.options)
    seconds = bench.scale(_PUTS_PER_TURN, _FEW_PUTS) * wait_ms / 1000
    some = rivals.batches("narrow", 20, 1_000)
    return rivals.putting(partial(_late, rival, service, wait_ms), place, some, threads=threads, seconds=seconds)


@contextmanager
def _late(rival: Rival, service: Service, wait_ms: int, place: Place) -> Iterator[Put]:
    """The rival, on a service that is quick while tables are made and writers end, and late in between."""
    with rival(place) as put:
        service.answer_after(wait_ms)
        try:
            yield put
        finally:
            service.answer_after(0)
