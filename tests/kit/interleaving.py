"""Clients that take turns at every store call, in an order that a seed decides.

Each client is a thread that stands still before each of its store calls until the scheduler lets it go, so a schedule is a
sequence of choices and can be repeated. Some clients sleep: one of their calls waits until the others have made many, as a
process does that was stopped, swapped out or cut off right before a request.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from lance_memwal.log import manifest
from lance_memwal.process.turns import Turn
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock

_SECONDS = 30.0


class Scheduler:
    """Runs clients one store call at a time."""

    def __init__(self, uri: str, seed: int) -> None:
        self._uri = uri
        self._draw = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: dict[int, str] = {}
        self._running: set[int] = set()
        self._chosen: int | None = None
        self._favourite = 0
        self._calls: dict[int, int] = {}
        self._naps: dict[int, tuple[int, int]] = {}
        self._over = False
        self.failures: list[BaseException] = []
        self.trace: list[str] = []

    def run(self, clients: list[Callable[[Location], None]]) -> None:
        """Run every client to its end; what a client raises is in `failures`."""
        self._running = set(range(len(clients)))
        for client in self._running:
            if self._draw.random() < 0.5:
                self._naps[client] = (self._draw.randrange(20), self._draw.choice((10, 40, 100, 1_000)))
        threads = [threading.Thread(target=self._live, args=(n, client)) for n, client in enumerate(clients)]
        with patch.object(manifest, "turn_of", lambda *_: Turn()):  # each client stands for a process of its own
            for thread in threads:
                thread.start()
            while self._step():
                pass
            for thread in threads:
                thread.join(_SECONDS)
        self._over = True

    def _live(self, client: int, work: Callable[[Location], None]) -> None:
        location = resolve(self._uri, clock=SkippingClock(client), wrap=lambda store: _Gated(store, self, client))
        try:
            work(location)
        except BaseException as error:
            self.failures.append(error)
        finally:
            with self._changed:
                self._running.discard(client)
                self._changed.notify_all()

    def gate(self, client: int, what: str) -> None:
        """Wait for this client's turn; after the run, nobody waits."""
        with self._changed:
            if self._over:
                return
            self._waiting[client] = what
            self._changed.notify_all()
            self._wait(lambda: self._chosen == client)
            self._chosen = None
            del self._waiting[client]

    def _step(self) -> bool:
        with self._changed:
            self._wait(lambda: self._chosen is None and self._running == set(self._waiting))
            if not self._running:
                return False
            awake = [client for client in sorted(self._waiting) if not self._sleeps(client)] or sorted(self._waiting)
            if self._favourite not in awake or self._draw.random() < 0.3:
                self._favourite = self._draw.choice(awake)
            self.trace.append(f"{self._favourite} {self._waiting[self._favourite]}")
            self._calls[self._favourite] = self._calls.get(self._favourite, 0) + 1
            self._chosen = self._favourite
            self._changed.notify_all()
            return True

    def _sleeps(self, client: int) -> bool:
        """Whether this client's nap at its next call is not over yet; it ends after so many calls of the others."""
        at, length = self._naps.get(client, (-1, 0))
        others = len(self.trace) - self._calls.get(client, 0)
        return self._calls.get(client, 0) == at and others < at + length

    def _wait(self, until: Callable[[], bool]) -> None:
        if not self._changed.wait_for(until, _SECONDS):
            raise TimeoutError(f"the schedule stands still: {self._waiting}, {self._running}, chosen {self._chosen}")


class _Gated(WrappedStore):
    def __init__(self, inner: ObjectStore, scheduler: Scheduler, client: int) -> None:
        super().__init__(inner)
        self._scheduler = scheduler
        self._client = client

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        self._scheduler.gate(self._client, f"{kind} {path[-70:]}")
        return call(path, *rest, **options)
