"""The one Flight server of this process.

Owns its life. Invariants:

1. It listens where `endpoint` says, and answers nobody who does not know the token: not even what it serves.
2. It begins with the first shard and ends with the last one, or with the program; whoever talks to it then is
   answered, and its exchange ends. A program that ends waits for that, for some seconds.
3. It has a bounded number of exchanges, and so of threads: who comes later is told to come again.
4. A forked child has no server: it neither answers nor shuts the parent's down.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import weakref
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.process.background import at_exit
from lance_memwal.process.forking import keep_for_ever, run_in_child
from lance_memwal.serve.desk import Conversation, Desk, Start, answer_greeting
from lance_memwal.serve.endpoint import Endpoint, own_endpoint
from lance_memwal.serve.record import Owner
from lance_memwal.serve.runtime import NONCE_BYTES, Secret, token
from lance_memwal.shard_writer import ShardWriter

_LOG = logging.getLogger(__name__)
_MOST_EXCHANGES = 256

_lock = threading.RLock()
_desk = Desk()
_server: Any = None
_owner: Owner | None = None
_ending: list[tuple[Any, Any]] = []  # servers, and the threads that shut them down


def begin(start: Start) -> Owner:
    """How this process is reached, for a shard that it is about to own; whoever asks is told to wait until that is over."""
    _desk.begin(start)
    with _lock:
        return _listen()


def serve(table_id: str, writer: ShardWriter) -> None:
    """Answer for a shard that this process owns, until `forget`; its start is not over."""
    _desk.serve(table_id, writer)


def forget(table_id: str, writer: ShardWriter) -> None:
    """Answer for it no more; unknown is fine."""
    _desk.forget(table_id, writer)
    end_if_idle()


def _listen() -> Owner:
    global _server, _owner
    if _owner is None or _server is None:
        run_in_child(_forget_in_child)
        at_exit(_end_at_exit)
        _server = _server_class()(own_endpoint(), Secret(token()))
        _owner = Owner(_server.address, socket.gethostname(), os.getpid(), SYSTEM_CLOCK.now_ms())
        _LOG.info("owner listens [address=%s]", _server.address)
    return _owner


def end_if_idle() -> None:
    """Answer nobody, once there is nothing to answer for."""
    global _server, _owner
    with _lock:
        if not _desk.is_idle or _server is None:
            return
        server, _server, _owner = _server, None, None
        _begin_end(server)


def _begin_end(server: Any) -> None:
    """Shut a server down beside the caller: exchanges that nobody uses end after a moment."""
    _ending[:] = [(each, thread) for each, thread in _ending if thread.is_alive()]
    server.is_ending = True
    _ending.append((server, SYSTEM_CLOCK.spawn(server.shutdown, "memwal-owner-end")))


def _end_at_exit(deadline: float) -> None:
    global _server, _owner
    server, _server, _owner = _server, None, None
    if server is not None:
        _desk.forget_all()
        _begin_end(server)
    for each, thread in _ending:
        thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))
        if thread.is_alive():
            _abandon(each)


def _forget_in_child() -> None:
    global _lock, _desk, _server, _owner
    for server in [_server, *(each for each, _ in _ending)]:
        if server is not None:
            _abandon(server)
    _lock, _desk, _server, _owner = threading.RLock(), Desk(), None, None
    _ending.clear()


def _abandon(server: Any) -> None:
    """Let nothing shut the server down, now or when the program ends: it would wait for threads that are not here."""
    for reference in weakref.getweakrefs(server):
        ending = reference.__callback__
        if isinstance(ending, weakref.finalize):
            ending.detach()
    keep_for_ever(server)


@lru_cache(maxsize=1)
def _server_class() -> Any:
    from pyarrow import flight

    class TokenGate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
        """Refuses every call without the word for this server; before it knows its own address, every call."""

        word: bytes | None = None

        def start_call(self, info: Any, headers: dict[str, list[Any]]) -> None:  # noqa: ARG002
            """Raise unless the caller knows the token."""
            given = headers.get("authorization", [""])[0]
            said = given if isinstance(given, bytes) else str(given).encode()
            if self.word is None or not hmac.compare_digest(said, self.word):
                raise flight.FlightUnauthenticatedError("the token is missing or wrong")

    class OwnerServer(flight.FlightServerBase):  # type: ignore[misc]
        """Answers for the shards of this process."""

        def __init__(self, endpoint: Endpoint, secret: Secret) -> None:
            gate, tls = TokenGate(), endpoint.certificate
            certificates = None if tls is None else [(tls, endpoint.key)]
            where = endpoint.address(endpoint.port)
            super().__init__(where, tls_certificates=certificates, middleware={"token": gate})
            self._secret = secret
            self._room = threading.BoundedSemaphore(_MOST_EXCHANGES)
            self.is_ending = False
            self.address = endpoint.address(self.port)
            gate.word = secret.word_for(self.address)

        def do_action(self, context: Any, action: Any) -> list[bytes]:  # noqa: ARG002
            """Whether the owner of a shard is there."""
            nonce, body = _split(action.body)
            told = _desk.answer_hello(body)
            return [self._secret.proof_of(nonce, told) + told]

        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
            """Writes, one message after the other."""
            has_room = self._room.acquire(blocking=False)
            try:
                self._exchange(reader, writer, has_room)
            except (StopIteration, pa.ArrowException, OSError) as error:  # the caller left
                _LOG.debug("an exchange ended [why=%s]", type(error).__name__)
            finally:
                if has_room:
                    self._room.release()

        def _exchange(self, reader: Any, writer: Any, has_room: bool) -> None:
            nonce, body = _split(reader.read_chunk().app_metadata)
            begins, told = answer_greeting(body, is_full=not has_room)
            writer.write_metadata(self._secret.proof_of(nonce, told) + told)
            conversation = Conversation(_desk)
            while begins and not self.is_ending:
                writer.write_metadata(conversation.answer(reader.read_chunk().app_metadata))

    return OwnerServer


def _split(data: Any) -> tuple[bytes, bytes]:
    """The nonce of a caller, and what follows it."""
    whole = b"" if data is None else data.to_pybytes()
    return whole[:NONCE_BYTES], whole[NONCE_BYTES:]
