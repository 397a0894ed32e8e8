"""Owners that take the rows of sinks.

Owns `SinkOwners`. Invariants:

1. A sink's rows go to the owner of exactly the epoch that it looked at, under the transaction of the sink: a repeat, to this
   owner or by another way, is skipped.
2. An owner that does not answer is gone: the sink looks again, and may claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_memwal.errors import ClosedError, InvalidInputError, WriterPoisonedError
from lance_memwal.process.deadline import Deadline
from lance_memwal.serve.caller import OwnerStartsError, RemoteShard
from lance_memwal.serve.channel import OwnerLostError
from lance_memwal.serve.record import OwnerRecords
from lance_memwal.serve.shared_shard import is_near
from lance_memwal.serve.wire import Request
from lance_memwal.store.location import Location
from lance_memwal.types import Transaction
from lance_memwal.write.changes import Terms
from lance_memwal.write.joining import OwnerGoneError
from lance_memwal.write.once import AppendResult


class SinkOwners:
    """The served owners of one table's shards, as a sink asks for them."""

    def __init__(self, location: Location, table_id: str) -> None:
        self._location = location
        self._table_id = table_id

    def __call__(self, shard_id: str, epoch: int) -> _OwnedElsewhere | None:
        """The owner of this epoch; None if it is not served, or begins, `OwnerGoneError` if it does not answer."""
        owner = OwnerRecords(self._location, shard_id).find(epoch)
        if owner is None or not is_near(owner):
            return None
        try:
            return _OwnedElsewhere(shard_id, RemoteShard(owner, self._table_id, shard_id, epoch))
        except OwnerStartsError:
            return None
        except OwnerLostError as error:
            raise OwnerGoneError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _OwnedElsewhere:
    shard_id: str
    remote: RemoteShard

    def append(
        self, batches: Sequence[pa.RecordBatch], txn: Transaction, terms: Terms, deadline: Deadline
    ) -> AppendResult:
        """See `ServedOwner`."""
        if not (terms.where is None or isinstance(terms.where, str)):
            raise InvalidInputError(
                "a condition goes to the owner of the shard, in another process: give it as SQL text"
            )
        options = {
            "missing": terms.missing,
            "if_absent": terms.if_absent,
            "where": terms.where,
            "insert": terms.insert,
        }
        if terms.sequence is not None:  # an owner of a release before this one does not know the word, and says so
            options["sequence"] = terms.sequence
        try:
            told = self.remote.perform(Request("append", (list(batches),), options), txn, deadline)
        except (OwnerLostError, ClosedError, WriterPoisonedError) as error:
            raise OwnerGoneError(str(error)) from error
        return AppendResult(self.shard_id, told.written, skipped=told.skipped, rejected=told.rejected)
