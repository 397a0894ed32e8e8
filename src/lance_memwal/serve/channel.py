"""The way from this process to another one that owns shards.

Owns `Channel`: one connection per address, and the exchanges over it. Invariants:

1. A question ends with an answer, with `OwnerLostError` (its outcome is unknown), with `SlowOwnerError` (the owner is there and
   did not answer in time: the same question may be asked again), or with `OwnerBusyError` (nothing was sent).
2. An exchange begins with the proof that its other end knows the token, over that very connection; nothing is asked before.
3. One question at a time uses an exchange. There are few of them, whatever the number of threads; those that nobody
   uses are ended after a moment, so that they hold no thread of the owner.
4. While a question waits, another thread watches: an owner that does not even say that it is there is lost.
5. A forked child ends nothing of it.
"""

from __future__ import annotations

import hmac
import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import MemWalError, UnavailableError
from lance_memwal.process.background import at_exit, is_ending
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.forking import keep_for_ever, run_in_child
from lance_memwal.process.turns import TakenError, Turn
from lance_memwal.process.waiting import on_top_error
from lance_memwal.serve.desk import FULL, GREETING, HELLO, WIRE_VERSION
from lance_memwal.serve.endpoint import CA_VARIABLE, is_distrusted, is_for_other_hosts, trusted_roots
from lance_memwal.serve.runtime import NONCE_BYTES, PROOF_BYTES, TOKEN_VARIABLE, Secret, token
from lance_memwal.serve.wire import Book, ShardName, decode_answer, encode_header

_LOG = logging.getLogger(__name__)
ANSWER_SECONDS = 2.0
_HELLO_SECONDS = 2.0
_MOST_EXCHANGES = 8
_IDLE_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_LIFE_SECONDS = 600.0  # after that both ends end an exchange, whatever became of the other
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500))


class OwnerLostError(MemWalError):
    """The owner does not answer. The outcome of what it was asked is unknown."""


class SlowOwnerError(MemWalError):
    """The owner is there, and did not answer in time. What it was asked may still be done."""


class OwnerBusyError(MemWalError):
    """The owner serves as many as it can. Nothing was asked."""


class _Exchange:
    """Questions to an owner, and its answers, one after the other."""

    __slots__ = ("_reader", "_writer", "asked_at", "book", "born", "idle_since", "is_slow", "patience_seconds")

    def __init__(self, writer: Any, reader: Any) -> None:
        self._writer, self._reader = writer, reader
        self.book = Book()
        self.born = self.idle_since = SYSTEM_CLOCK.monotonic()
        self.asked_at: float | None = None
        self.patience_seconds = _HELLO_SECONDS
        self.is_slow = False

    def ask(self, data: bytes) -> Any:
        """The answer, as it came; `OwnerLostError` or `SlowOwnerError` without one."""
        self.asked_at = SYSTEM_CLOCK.monotonic()
        try:
            self._writer.write_metadata(data)
            answer = self._reader.read_chunk().app_metadata
        except _flight().FlightUnauthenticatedError:
            raise
        except Exception as error:  # whatever the transport met: the next question is whether the owner is there
            if self.is_slow:
                raise SlowOwnerError("the owner did not answer in time") from error
            raise OwnerLostError("the owner ended the exchange") from error
        self.idle_since, self.asked_at = SYSTEM_CLOCK.monotonic(), None
        return answer

    def cancel(self) -> None:
        """End a question that waits; may be called by any thread."""
        self._reader.cancel()

    def end(self) -> None:
        """End it, without a wait for the other end."""
        try:
            self._reader.cancel()
            self._writer.close()
        except Exception as error:  # it says that it was cancelled
            _LOG.debug("exchange ended [why=%s]", type(error).__name__)

    def keep(self) -> None:
        """In a forked child: let nothing end it."""
        keep_for_ever(self._writer)
        keep_for_ever(self._reader)


class Channel:
    """The connection to one address. Threads may share it."""

    def __init__(self, address: str, secret: Secret, roots: bytes | None) -> None:
        """Nothing is sent yet. `roots`: the certificates that are trusted, where not the system says."""
        self.address = address
        self._client = _flight().FlightClient(address, tls_root_certs=roots, generic_options=list(_OPTIONS))
        self._secret = secret
        self._turns = tuple(Turn() for _ in range(_MOST_EXCHANGES))
        self._asked = itertools.count()
        self._lock = threading.Lock()
        self._open: set[_Exchange] = set()
        self._idle: list[_Exchange] = []
        self._inside: set[int] = set()
        self._is_watched = False

    def hello(self, shard: ShardName | None = None) -> Any:
        """What the owner says of a shard, or of itself; `OwnerLostError` if it says nothing."""
        flight, nonce = _flight(), _nonce()
        asked = {} if shard is None else {"shard": shard}
        body = nonce + encode_header({"version": WIRE_VERSION, **asked})
        try:
            [found] = self._client.do_action(flight.Action(HELLO, body), self._call(_HELLO_SECONDS))
        except flight.FlightUnauthenticatedError as error:
            raise self._unknown_token() from error
        except Exception as error:
            raise self._unreachable() from error
        return decode_answer(self._proven(nonce, found.body))

    def ask(self, write: Callable[[Book], bytes], deadline: Deadline, patience_seconds: float) -> Any:
        """What the owner answers to a message, which is made for the exchange that carries it."""
        own = threading.get_ident()
        if own in self._inside:
            raise on_top_error("a write")
        try:
            self._inside.add(own)
            return decode_answer(self._ask_in_turn(write, deadline, patience_seconds))
        finally:
            self._inside.discard(own)

    def _ask_in_turn(self, write: Callable[[Book], bytes], deadline: Deadline, patience_seconds: float) -> Any:
        for turn in self._turns:
            try:
                with turn.taken(0.0):
                    return self._ask(write, patience_seconds)
            except TakenError:
                continue
        late = partial(deadline.error, f"no way to the owner at {self.address} was free; retry")
        with self._turns[next(self._asked) % _MOST_EXCHANGES].taken(deadline.left_seconds, late):
            return self._ask(write, patience_seconds)

    def _ask(self, write: Callable[[Book], bytes], patience_seconds: float) -> Any:
        exchange = self._take()
        try:
            exchange.patience_seconds = patience_seconds
            answer = exchange.ask(write(exchange.book))
        except BaseException:
            self._drop(exchange)
            raise
        with self._lock:
            self._idle.append(exchange)
        return answer

    # -------------------------------------------------------------------------------------------------------- exchanges

    def _take(self) -> _Exchange:
        now = SYSTEM_CLOCK.monotonic()
        while True:
            with self._lock:
                exchange = self._idle.pop() if self._idle else None
                if exchange is not None:
                    exchange.idle_since = now  # for a moment nobody takes it for unused
            if exchange is None:
                return self._begin()
            if now - exchange.born < _LIFE_SECONDS / 2:
                return exchange
            self._drop(exchange)

    def _begin(self) -> _Exchange:
        exchange = self._connect()
        try:
            self._greet(exchange)
        except _flight().FlightUnauthenticatedError as error:
            self._drop(exchange)
            raise self._unknown_token() from error
        except BaseException:
            self._drop(exchange)
            raise
        return exchange

    def _connect(self) -> _Exchange:
        descriptor = _flight().FlightDescriptor.for_command(GREETING)
        try:
            exchange = _Exchange(*self._client.do_exchange(descriptor, self._call(_LIFE_SECONDS)))
        except Exception as error:
            raise self._unreachable() from error
        with self._lock:
            self._open.add(exchange)
            watched, self._is_watched = self._is_watched, True
        if not watched:
            at_exit(_end_at_exit)
            SYSTEM_CLOCK.spawn(self._watch, "memwal-owner-watch")
        return exchange

    def _greet(self, exchange: _Exchange) -> None:
        nonce = _nonce()
        told = exchange.ask(nonce + encode_header({"version": WIRE_VERSION}))
        if decode_answer(self._proven(nonce, told)) == FULL:
            raise OwnerBusyError(f"the owner at {self.address} serves as many exchanges as it can")

    def _drop(self, exchange: _Exchange) -> None:
        with self._lock:
            self._open.discard(exchange)
        exchange.end()

    def _watch(self) -> None:
        while not is_ending():
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
            now = SYSTEM_CLOCK.monotonic()
            with self._lock:
                # also what a caller took that was interrupted before it asked
                unused = [
                    each for each in self._open if each.asked_at is None and now - each.idle_since > _IDLE_SECONDS
                ]
                self._idle = [each for each in self._idle if each not in unused]
                self._open.difference_update(unused)
                waiting = [(each, at) for each in self._open if (at := each.asked_at) is not None]
                if not self._open:
                    self._is_watched = False
            for exchange in unused:
                exchange.end()
            if not self._is_watched:
                return
            late = [(each, at) for each, at in waiting if now - at > each.patience_seconds]
            if late:
                self._look_after(late)

    def _look_after(self, late: list[tuple[_Exchange, float]]) -> None:
        """End questions that wait for too long; whether the owner is there decides what is said of them."""
        try:
            self.hello()
            is_there = True
        except MemWalError:
            is_there = False
        for exchange, asked_at in late:
            if exchange.asked_at == asked_at:
                exchange.is_slow = is_there
                exchange.cancel()

    def end(self) -> None:
        """End all exchanges; what waits is lost."""
        with self._lock:
            ended, self._open, self._idle = self._open, set(), []
        for exchange in ended:
            exchange.end()

    def orphan(self) -> None:
        """In a forked child: all of it is the parent's, and is not torn down here."""
        keep_for_ever(self._client)
        for exchange in self._open:
            exchange.keep()

    # ---------------------------------------------------------------------------------------------------------- trust

    def _call(self, seconds: float) -> Any:
        word = self._secret.word_for(self.address)
        return _flight().FlightCallOptions(headers=[(b"authorization", word)], timeout=seconds)

    def _proven(self, nonce: bytes, told: Any) -> Any:
        """The answer, if it is that of somebody who knows the token."""
        proof, answer = told.to_pybytes()[:PROOF_BYTES], told.to_pybytes()[PROOF_BYTES:]
        if not hmac.compare_digest(proof, self._secret.proof_of(nonce, answer)):
            raise OwnerLostError(f"somebody else answers at {self.address}")
        return answer

    def _unreachable(self) -> MemWalError:
        if is_distrusted(self.address):
            return UnavailableError(
                f"the certificate of the owner at {self.address} is not one that we trust: set {CA_VARIABLE} to the one that "
                "signed it",
                ambiguous=False,
                retryable=False,
            )
        return OwnerLostError(f"the owner at {self.address} cannot be reached")

    def _unknown_token(self) -> UnavailableError:
        return UnavailableError(
            f"the owner at {self.address} does not know our token: run all processes as one user, or give all of them the "
            f"same {TOKEN_VARIABLE}",
            ambiguous=False,
            retryable=False,
        )


# ---------------------------------------------------------------------------------------------------------- all of them

_lock = threading.Lock()
_channels: weakref.WeakValueDictionary[tuple[str, str, bytes | None], Channel] = weakref.WeakValueDictionary()


def channel_to(address: str) -> Channel:
    """The channel of this process to an address, under the token and the certificates that count now."""
    run_in_child(_forget_in_child)
    known, roots = token(), trusted_roots() if is_for_other_hosts(address) else None
    name = (address, known, roots)
    with _lock:
        found = _channels.get(name)
        if found is None:
            found = _channels[name] = Channel(address, Secret(known), roots)
        return found


def _end_at_exit(deadline: float) -> None:  # noqa: ARG001 (it does not wait)
    for channel in list(_channels.values()):
        channel.end()


def _forget_in_child() -> None:
    global _lock
    for channel in list(_channels.values()):
        channel.orphan()
    _lock = threading.Lock()
    _channels.clear()


def _nonce() -> bytes:
    return SYSTEM_CLOCK.randbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "little")


@lru_cache(maxsize=1)
def _flight() -> Any:
    from pyarrow import flight

    return flight
