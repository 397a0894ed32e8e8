"""A shard that another process owns.

Owns `RemoteShard`. Invariants:

1. A call ends with the owner's answer, with the error that it met, or with `OwnerLostError`: then its outcome is unknown,
   and whoever repeats it does so under the same mark.
2. An owner that is there and slow is asked again: it knows the mark, and waits for what it has begun.
3. Small puts of whole rows share messages. Everything else has a message of its own, and waits for none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lance_memwal.clock import RETRY, SYSTEM_CLOCK
from lance_memwal.errors import ClosedError, FencedError, InvalidInputError, MemWalError, UnavailableError
from lance_memwal.process.deadline import Deadline
from lance_memwal.serve import channel
from lance_memwal.serve.channel import OwnerBusyError, OwnerLostError, SlowOwnerError, channel_to
from lance_memwal.serve.desk import STARTING
from lance_memwal.serve.record import Owner
from lance_memwal.serve.together import MOST_BYTES, Line, MarkedPut
from lance_memwal.serve.wire import Request, encode_request
from lance_memwal.types import EntryTransaction, Transaction


class OwnerStartsError(MemWalError):
    """The process at this address is about to own the shard."""


class RemoteShard:
    """A shard, through the process that owns it under one epoch."""

    def __init__(self, owner: Owner, table_id: str, shard_id: str, epoch: int) -> None:
        """Ask the owner whether it is one: `OwnerLostError` if not, `OwnerStartsError` if it is about to be."""
        self._to = (table_id, shard_id, epoch)
        self._channel = channel_to(owner.address)
        self._line = Line(self._send_together)
        self._hello_ms = self._hello()
        self._since = SYSTEM_CLOCK.monotonic()

    @property
    def shard_time_ms(self) -> int:
        """The time of the shard."""
        return self._hello_ms + int((SYSTEM_CLOCK.monotonic() - self._since) * 1000)

    def perform(self, request: Request, txn: Transaction | None, deadline: Deadline) -> Any:
        """What the owner did with the write."""
        attempt, was_sent = 0, False
        while True:
            try:
                return self._once(request, txn, deadline, attempt)
            except SlowOwnerError:
                was_sent = True
            except UnavailableError as error:
                error.ambiguous = error.ambiguous or was_sent
                raise
            except (FencedError, ClosedError) as error:
                if was_sent:  # whether it did it before is not known
                    raise OwnerLostError("the owner did not answer, and is none any more") from error
                raise
            except OwnerBusyError:
                RETRY.wait(SYSTEM_CLOCK, attempt)
            attempt += 1
            if not deadline.left_seconds:
                raise UnavailableError(
                    f"the owner of shard {self._to[1]} did not finish a write in time; it may still do so",
                    ambiguous=was_sent,
                )

    def _once(self, request: Request, txn: Transaction | None, deadline: Deadline, attempt: int) -> Any:
        if request.is_plain and attempt == 0 and txn is not None and _is_small(request.parts[0]):
            [rows] = request.parts[0] or []
            return self._line.write(MarkedPut(rows, txn, request.options.get("missing")), deadline)
        marks = [] if txn is None else [EntryTransaction(txn)]
        return self._ask(request, marks, deadline, attempt)

    def _send_together(self, puts: Sequence[MarkedPut], deadline: Deadline) -> Sequence[Any]:
        rows = puts[0].rows if len(puts) == 1 else pa.concat_batches([put.rows for put in puts])
        marks = [EntryTransaction(put.txn, 0, put.rows.num_rows) for put in puts]
        options = {} if puts[0].missing is None else {"missing": puts[0].missing}
        told = self._ask(Request("put", ([rows],), options), marks, deadline, 0)
        return told if isinstance(told, list) else [told]

    def _ask(self, request: Request, marks: Sequence[EntryTransaction], deadline: Deadline, attempt: int) -> Any:
        patience = channel.ANSWER_SECONDS * min(4.0, 2.0**attempt)
        return self._channel.ask(lambda book: encode_request(request, self._to, marks, book), deadline, patience)

    def look(self) -> None:
        """Return if the owner is there; `OwnerLostError` if not."""
        self._hello()

    def _hello(self) -> int:
        try:
            told = int(self._channel.hello(self._to))
        except (UnavailableError, InvalidInputError):  # it does not know our token, or speaks another version
            raise
        except MemWalError as error:
            raise OwnerLostError(f"the owner at {self._channel.address} does not answer for the shard") from error
        if told == STARTING:
            raise OwnerStartsError("the owner begins")
        return told


def _is_small(rows: list[pa.RecordBatch] | None) -> bool:
    return rows is not None and len(rows) == 1 and rows[0].get_total_buffer_size() <= MOST_BYTES
