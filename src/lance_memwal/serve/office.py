"""The one Flight server of this process, and the shards that it answers for.

Owns the server's life. Invariants:

1. It listens on loopback, and answers nobody who does not know the token: not even what it serves.
2. It begins with the first shard and ends with the last one, or with the program; a call that runs then is waited for,
   for some seconds.
3. It answers for an epoch of a shard that a writer of this process owns. Whatever that writer refuses is refused: a writer
   that was fenced acknowledges nothing.
4. A forked child has no server: it neither answers nor shuts the parent's down.
"""

from __future__ import annotations

import ctypes
import hmac
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.crash_points import reach
from lance_memwal.errors import ClosedError, InvalidInputError
from lance_memwal.process.background import at_exit
from lance_memwal.process.forking import run_in_child
from lance_memwal.serve.record import Owner
from lance_memwal.serve.runtime import NONCE_BYTES, Secret, token
from lance_memwal.serve.wire import Message, decode, encode_answer, encode_error, perform, request_of
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.write.results import WriteResult

__all__ = ["HELLO", "HOST", "address_of", "STARTING", "WRITE", "forget", "serve", "starting"]

_LOG = logging.getLogger(__name__)
HELLO, WRITE = "memwal.hello", "memwal.write"
STARTING = -1  # answered to `HELLO` by a process that is about to own the shard
HOST = "127.0.0.1"
_END_SECONDS = 5.0


_Name = tuple[str, str, int]  # table, shard, epoch
_lock = threading.RLock()
_served: dict[_Name, ShardWriter] = {}
_starting: dict[tuple[str, str], int] = {}
_server: Any = None
_owner: Owner | None = None


@contextmanager
def starting(table_id: str, shard_id: str) -> Iterator[Owner]:
    """How this process is reached, for a shard that it is about to own; whoever asks meanwhile is told to wait."""
    name = (table_id, shard_id)
    with _lock:
        owner = _listen()
        _starting[name] = _starting.get(name, 0) + 1
    try:
        yield owner
    finally:
        with _lock:
            _starting[name] -= 1
            if not _starting[name]:
                del _starting[name]
        _end_if_idle()


def serve(table_id: str, writer: ShardWriter) -> None:
    """Answer for a shard that this process owns, until `forget`; within `starting`."""
    with _lock:
        _served[table_id, writer.shard_id, writer.epoch] = writer


def forget(table_id: str, writer: ShardWriter) -> None:
    """Answer for it no more; unknown is fine."""
    with _lock:
        _served.pop((table_id, writer.shard_id, writer.epoch), None)
    _end_if_idle()


def address_of(port: int) -> str:
    """The address of an owner of this host."""
    return f"grpc+tcp://{HOST}:{port}"


def _listen() -> Owner:
    global _server, _owner
    if _owner is None or _server is None:
        run_in_child(_forget_in_child)
        at_exit(_end_at_exit)
        _server = _server_class()(Secret(token()))
        address = address_of(_server.port)
        _owner = Owner(address, socket.gethostname(), os.getpid(), SYSTEM_CLOCK.now_ms())
        _LOG.info("owner listens [address=%s]", address)
    return _owner


def _end_if_idle() -> None:
    global _server, _owner
    with _lock:
        if _served or _starting or _server is None:
            return
        server, _server, _owner = _server, None, None
    _shut_down(server, _END_SECONDS)


def _end_at_exit(deadline: float) -> None:
    global _server, _owner
    server, _server, _owner = _server, None, None
    if server is not None:
        _served.clear()
        _shut_down(server, deadline - SYSTEM_CLOCK.monotonic())


def _shut_down(server: Any, seconds: float) -> None:
    """Shut a server down; it waits for calls that run, and is left to itself if that takes longer."""
    SYSTEM_CLOCK.spawn(server.shutdown, "memwal-owner-end").join(max(0.0, seconds))


def _forget_in_child() -> None:
    global _lock, _server, _owner
    if _server is not None:
        _abandon(_server)
    _lock, _server, _owner = threading.RLock(), None, None
    _served.clear()
    _starting.clear()


def _abandon(server: Any) -> None:
    """Let nothing shut the server down, now or when the program ends: it would wait for threads that are not here."""
    for reference in weakref.getweakrefs(server):
        ending = reference.__callback__
        if isinstance(ending, weakref.finalize):
            ending.detach()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


# -------------------------------------------------------------------------------------------------------------- answers


def answer(kind: str, body: Any) -> bytes:
    """What a caller who knows the token is told."""
    try:
        done = encode_answer(_CALLS.get(kind, _unknown)(decode(body)))
        reach("serve.before_answer")
    except Exception as error:
        return encode_error(error)
    return done


def _write(message: Message) -> WriteResult | bool | None:
    request, txn = request_of(message)
    return perform(_writer_of(message), request, txn)


def _unknown(message: Message) -> None:
    raise InvalidInputError(
        f"no such call, by a message of {len(message.header)} fields; use the same version everywhere"
    )


def _hello(message: Message) -> int:
    header = message.header
    if (header.get("table"), header.get("shard")) in _starting:
        return STARTING
    return _writer_of(message).shard_time_ms


def _writer_of(message: Message) -> ShardWriter:
    header = message.header
    found = _served.get((str(header.get("table")), str(header.get("shard")), int(header.get("epoch", 0))))
    if found is None or not found.is_writing:
        raise ClosedError("this process does not own the shard under that epoch")
    return found


_CALLS: dict[str, Callable[[Message], WriteResult | bool | int | None]] = {HELLO: _hello, WRITE: _write}


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

        def __init__(self, secret: Secret) -> None:
            gate = TokenGate()
            super().__init__(f"grpc+tcp://{HOST}:0", middleware={"token": gate})
            self._secret = secret
            gate.word = secret.word_for(address_of(self.port))

        def do_action(self, context: Any, action: Any) -> list[bytes]:  # noqa: ARG002
            """One call."""
            body = action.body
            nonce = body.slice(0, min(NONCE_BYTES, body.size)).to_pybytes()
            told = answer(action.type, body.slice(min(NONCE_BYTES, body.size)))
            return [self._secret.proof_of(nonce, told) + told]

    return OwnerServer
