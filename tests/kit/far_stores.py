"""A store on a local directory that is far away: the engine treats it as remote, and its calls can meet each other."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lance_memwal.errors import UnavailableError
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.wrap import WrappedStore

_SECONDS = 20.0


@dataclass
class Failing:
    """Calls that fail, so many times."""

    kind: str
    part: str
    times: int


class FarStore(WrappedStore):
    """A real store. Every call is counted, takes `delay_seconds` longer, and may have to wait for similar calls."""

    def __init__(self, inner: ObjectStore, delay_seconds: float = 0.0) -> None:
        super().__init__(inner)
        self.delay_seconds = delay_seconds
        self.calls: Counter[str] = Counter()
        self._failing: list[Failing] = []
        self._meetings: list[tuple[str, str, threading.Barrier]] = []

    def meet(self, kind: str, part: str, count: int) -> threading.Barrier:
        """Let calls of this kind whose path contains `part` wait until so many are there; `broken` if they never are."""
        barrier = threading.Barrier(count)
        self._meetings.append((kind, part, barrier))
        return barrier

    def fail(self, kind: str, part: str, times: int) -> Failing:
        """Let so many calls of this kind whose path contains `part` fail for good."""
        self._failing.append(Failing(kind, part, times))
        return self._failing[-1]

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """An object store has no directories that must be there first."""
        del make_directory
        return super().put_new(path, data, sync=sync, make_directory=True)

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        self.calls[kind] += 1
        for rule in self._failing:
            if rule.kind == kind and rule.part in path and rule.times > 0:
                rule.times -= 1
                raise UnavailableError("the test says no", ambiguous=False, retryable=False)
        for wanted, part, barrier in self._meetings:
            if wanted == kind and part in path and not barrier.broken:
                try:
                    barrier.wait(_SECONDS)
                except threading.BrokenBarrierError:
                    continue
        if not self.delay_seconds:
            return call(path, *rest, **options)
        time.sleep(self.delay_seconds / 2)  # the request is on its way, then its answer
        try:
            return call(path, *rest, **options)
        finally:
            time.sleep(self.delay_seconds / 2)


def far(root: str | Path, delay_seconds: float = 0.0) -> tuple[FarStore, Location]:
    """A location below `root` that counts as remote."""
    stores: list[FarStore] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        stores.append(FarStore(inner, delay_seconds))
        return stores[0]  # type: ignore[return-value]

    location = resolve(str(root), wrap=wrap)
    return stores[0], replace(location, is_local=False)
