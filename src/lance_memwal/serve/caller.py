"""The way to a shard that another process owns.

Owns `RemoteShard`. Invariants:

1. A call ends with the owner's answer, with the error that it met, or with `OwnerLostError`: then its outcome is unknown,
   and whoever repeats it does so under the same mark.
2. An owner that does not answer in time is asked whether it is there. One that is gets the same call again: it knows the
   mark, and waits for what it has begun. One that is not is lost.
"""

from __future__ import annotations

import ctypes
import hmac
from functools import lru_cache
from typing import Any

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import MemWalError, UnavailableError
from lance_memwal.process.deadline import Deadline
from lance_memwal.serve.office import HELLO, STARTING, WRITE
from lance_memwal.serve.record import Owner
from lance_memwal.serve.runtime import NONCE_BYTES, PROOF_BYTES, TOKEN_VARIABLE, Secret, token
from lance_memwal.serve.wire import Request, decode_answer, encode_request
from lance_memwal.types import Transaction

__all__ = ["OwnerLostError", "OwnerStartsError", "RemoteShard"]

_ANSWER_SECONDS = 2.0
_HELLO_SECONDS = 2.0
_NO_PROXY = (("grpc.enable_http_proxy", 0),)


class OwnerLostError(MemWalError):
    """The owner does not answer. The outcome of what it was asked is unknown."""


class OwnerStartsError(MemWalError):
    """The process at this address is about to own the shard."""


class RemoteShard:
    """A shard, through the process that owns it under one epoch."""

    def __init__(self, owner: Owner, table_id: str, shard_id: str, epoch: int) -> None:
        """Ask the owner whether it is one: `OwnerLostError` if not, `OwnerStartsError` if it is about to be."""
        self._to = {"table": table_id, "shard": shard_id, "epoch": epoch}
        self._address = owner.address
        self._client = _flight().FlightClient(owner.address, generic_options=list(_NO_PROXY))
        self._secret = Secret(token())
        word = self._secret.word_for(owner.address)
        self._options = {
            seconds: _flight().FlightCallOptions(headers=[(b"authorization", word)], timeout=seconds)
            for seconds in (_ANSWER_SECONDS, _HELLO_SECONDS)
        }
        self._hello_ms = self._hello()
        self._since = SYSTEM_CLOCK.monotonic()

    @property
    def shard_time_ms(self) -> int:
        """The time of the shard."""
        return self._hello_ms + int((SYSTEM_CLOCK.monotonic() - self._since) * 1000)

    def perform(self, request: Request, txn: Transaction | None, deadline: Deadline) -> Any:
        """What the owner did with the write."""
        body = encode_request(request, self._to, txn)
        while True:
            try:
                return self._ask(WRITE, body, _ANSWER_SECONDS)
            except _flight().FlightTimedOutError:
                if not deadline.left_seconds:
                    raise UnavailableError(
                        f"the owner of shard {self._to['shard']} did not finish a write in time; it may still do so",
                        ambiguous=True,
                    ) from None
                self._hello()

    def look(self) -> None:
        """Return if the owner is there; `OwnerLostError` if not."""
        self._hello()

    def _hello(self) -> int:
        try:
            told = int(self._ask(HELLO, encode_request(Request("hello"), self._to, None), _HELLO_SECONDS))
        except (_flight().FlightTimedOutError, MemWalError) as error:
            if isinstance(error, UnavailableError):
                raise
            raise OwnerLostError(f"the owner at {self._address} does not answer for the shard") from error
        if told == STARTING:
            raise OwnerStartsError("the owner begins")
        return told

    def _ask(self, kind: str, body: bytes, seconds: float) -> Any:
        flight, nonce = _flight(), SYSTEM_CLOCK.randbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "little")
        try:
            [found] = self._client.do_action(flight.Action(kind, nonce + body), self._options[seconds])
        except flight.FlightTimedOutError:
            raise
        except flight.FlightUnauthenticatedError as error:
            raise UnavailableError(
                f"the owner of shard {self._to['shard']} at {self._address} does not know our token: run all processes as "
                f"one user, or give all of them the same {TOKEN_VARIABLE}",
                ambiguous=False,
                retryable=False,
            ) from error
        except Exception as error:  # whatever the transport met: the next question is whether the owner is there
            raise OwnerLostError(f"the owner at {self._address} cannot be reached") from error
        return decode_answer(self._proven(nonce, found.body))

    def _proven(self, nonce: bytes, told: Any) -> Any:
        """The answer, if it is that of somebody who knows the token."""
        size = min(PROOF_BYTES, told.size)
        proof, answer = told.slice(0, size).to_pybytes(), told.slice(size)
        if not hmac.compare_digest(proof, self._secret.proof_of(nonce, answer.to_pybytes())):
            raise OwnerLostError(f"somebody else answers at {self._address}")
        return answer

    def orphan(self) -> None:
        """In a forked child: the channel is the parent's, and is not torn down here."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._client))


@lru_cache(maxsize=1)
def _flight() -> Any:
    from pyarrow import flight

    return flight
