"""What a caller who knows the token is told.

Owns the shards that this process answers for, `Conversation` (the messages of one exchange) and `answer_hello`. Invariants:

1. It answers for an epoch of a shard that a writer of this process owns. Whatever that writer refuses is refused: a writer
   that was fenced acknowledges nothing.
2. Every message is answered, also one that cannot be understood; nothing that a caller sends ends the process.
3. A caller of another version is told so, before it asks for anything.
"""

from __future__ import annotations

import threading
from typing import Any

from lance_memwal.crash_points import reach
from lance_memwal.errors import ClosedError, InvalidInputError
from lance_memwal.serve.wire import (
    Book,
    Message,
    ShardName,
    decode,
    encode_answer,
    encode_answers,
    encode_error,
    perform,
    perform_together,
    request_of,
    shard_name,
)
from lance_memwal.shard_writer import ShardWriter

WIRE_VERSION = 2
HELLO, GREETING = "memwal.look", b"memwal.writes"
STARTING = -1  # answered to `HELLO` by a process that is about to own the shard
THERE, FULL = 0, -2  # answered to a greeting


class Start:
    """A shard that this process is about to own, until `is_over`: an interrupt cannot come before that is set."""

    __slots__ = ("is_over", "name")

    def __init__(self, table_id: str, shard_id: str) -> None:
        self.name = (table_id, shard_id)
        self.is_over = False


class Desk:
    """The shards that are answered for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._served: dict[ShardName, ShardWriter] = {}
        self._starts: tuple[Start, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to answer for."""
        return not self._served and all(start.is_over for start in self._starts)

    def begin(self, start: Start) -> None:
        """Tell whoever asks for this shard to wait, until the start is over."""
        with self._lock:
            self._starts = (*(other for other in self._starts if not other.is_over), start)

    def _is_starting(self, table_id: str, shard_id: str) -> bool:
        return any(start.name == (table_id, shard_id) and not start.is_over for start in self._starts)

    def serve(self, table_id: str, writer: ShardWriter) -> None:
        """Answer for a shard."""
        self._served[table_id, writer.shard_id, writer.epoch] = writer

    def forget(self, table_id: str, writer: ShardWriter) -> None:
        """Answer for it no more; unknown is fine."""
        self._served.pop((table_id, writer.shard_id, writer.epoch), None)

    def forget_all(self) -> None:
        """Answer for nothing."""
        self._served.clear()

    def answer_hello(self, body: Any) -> bytes:
        """The time of the shard that a caller names, `STARTING`, or that this process is there."""
        try:
            header = _understood(body).header
            if "shard" not in header:
                return encode_answer(THERE)
            name = shard_name(header["shard"])
            if self._is_starting(*name[:2]):
                return encode_answer(STARTING)
            return encode_answer(self.writer_of(name).shard_time_ms)
        except Exception as error:
            return encode_error(error)

    def writer_of(self, name: ShardName) -> ShardWriter:
        """The writer that a message is for; `ClosedError` if this process has none."""
        found = self._served.get(name)
        if found is None or not found.is_writing:
            raise ClosedError("this process does not own the shard under that epoch")
        return found


class Conversation:
    """The messages of one exchange."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._book = Book()

    def answer(self, body: Any) -> bytes:
        """The answer to a message."""
        try:
            name, request, marks = request_of(decode(body), self._book)
            writer = self._desk.writer_of(name)
            if len(marks) > 1:
                done = encode_answers(perform_together(writer, request, marks))
            else:
                done = encode_answer(perform(writer, request, marks[0].txn if marks else None))
            reach("serve.before_answer")
        except Exception as error:
            return encode_error(error)
        return done


def answer_greeting(body: Any, *, is_full: bool) -> tuple[bool, bytes]:
    """Whether an exchange begins, and what its caller is told."""
    try:
        _understood(body)
    except InvalidInputError as error:
        return False, encode_error(error)
    return not is_full, encode_answer(FULL if is_full else THERE)


def _understood(body: Any) -> Message:
    message = decode(body)
    version = message.header.get("version")
    if version != WIRE_VERSION:
        raise InvalidInputError(
            f"the owner of the shard speaks version {WIRE_VERSION} and was asked in {version!r}; use the same version of "
            "lance-memwal everywhere"
        )
    return message
