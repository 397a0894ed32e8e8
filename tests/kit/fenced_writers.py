"""The processes of the fencing tests: writers that tell every step, and stop themselves where they are told to.

A test resumes a stopped writer after somebody else took the shard over, and looks at what it still says.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from lance_memwal import FencedError, ShardWriter
from tests.harness.kill_points import stop_at
from tests.harness.processes import Child, start
from tests.harness.shard_audit import TableKind

DEADLINE_SECONDS = 30.0


@dataclass(frozen=True)
class Shard:
    """The shard that is fought over."""

    uri: str
    shard_id: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    def open(self, **overrides: Any) -> ShardWriter:
        return ShardWriter.open(self.uri, shard_id=self.shard_id, **({"fsync": False} | self.settings | overrides))


def put(writer: ShardWriter, shard: Shard, number: int, key: int | None = None) -> None:
    """Put one row; its number says who wrote it. The key is the number unless another one is given."""
    writer.put(TableKind(shard.kind).batch_of([number if key is None else key], number))


def _told(pipe: Connection, what: str, step: Callable[[], object]) -> None:
    """Send `what` and how the step ended: "ok", "fenced", or the name of another error."""
    try:
        step()
    except FencedError as error:
        pipe.send((what, "fenced" if error.current_epoch > error.our_epoch else "fenced by nobody"))
    except Exception as error:
        pipe.send((what, f"{type(error).__name__}: {error}"))
    else:
        pipe.send((what, "ok"))


def writes_and_stops(shard: Shard, point: str, numbers: list[int], key: int | None, pipe: Connection) -> None:
    """Put `numbers`, stopping at `point` in the last one (or in its flush), then put again, seal, and close."""
    writer = shard.open()
    for number in numbers[:-1]:
        _told(pipe, "put", lambda number=number: put(writer, shard, number))  # type: ignore[misc]
    stop_at(point, before=lambda: pipe.send(("stops", point)))
    _told(pipe, "last put", lambda: put(writer, shard, numbers[-1], key))
    if point.startswith("flush"):
        _told(pipe, "drain", lambda: writer.wait_for_flush_drain(DEADLINE_SECONDS))
    _told(pipe, "next put", lambda: put(writer, shard, 9_001))
    _told(pipe, "seal", writer.force_seal_active)
    _told(pipe, "close", writer.close)


def opens_and_stops(shard: Shard, point: str, pipe: Connection) -> None:
    """Stop at `point` while opening; then, if the open returns, put and close."""
    stop_at(point, before=lambda: pipe.send(("stops", point)))
    opened: list[ShardWriter] = []
    _told(pipe, "open", lambda: opened.append(shard.open()))
    if opened:
        _told(pipe, "next put", lambda: put(opened[0], shard, 9_001))
        _told(pipe, "close", opened[0].close)


def takes_over(shard: Shard, numbers: list[int], key: int | None, pipe: Connection) -> None:
    """Open the shard, put `numbers`, flush everything and close."""
    opened: list[ShardWriter] = []
    _told(pipe, "open", lambda: opened.append(shard.open()))
    writer = opened[0]
    for number in numbers:
        _told(pipe, "put", lambda number=number: put(writer, shard, number, key))  # type: ignore[misc]
    _told(pipe, "close", writer.close)


def writes_until_fenced(shard: Shard, first: int, opens: int, pipe: Connection) -> None:
    """Open and put until somebody else takes over, and come back, `opens` times; tell every number before and after."""
    number = first
    for _ in range(opens):
        try:
            writer = shard.open()
        except FencedError:
            pipe.send(("fenced",))
            continue
        try:
            for _ in range(80):
                pipe.send(("issued", number))
                put(writer, shard, number)
                pipe.send(("returned", number))
                number += 1
        except FencedError:
            pipe.send(("fenced",))
            number += 1
        finally:
            writer.abort()
    pipe.send(("ends",))


def hear(child: Child) -> Iterator[tuple[Any, ...]]:
    """Every message until the child ends; it must not stay silent."""
    while True:
        try:
            message = child.receive(DEADLINE_SECONDS)
        except EOFError:
            return
        assert message is not None, "the child is silent"
        yield message


def hear_all(child: Child) -> dict[str, list[str]]:
    """How every step ended, by step; the child must end by itself."""
    steps: dict[str, list[str]] = {}
    for what, outcome in hear(child):
        steps.setdefault(what, []).append(outcome)
    assert child.wait(DEADLINE_SECONDS) == 0
    return steps


@contextmanager
def stalled(target: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """A child that stands still at its point; resumed and heard out by the test, killed if that fails."""
    child = start(target, *arguments)
    try:
        for message in hear(child):
            if message[0] == "stops":
                break
            assert message[1] == "ok", message
        child.wait_until_stopped(DEADLINE_SECONDS)
        yield child
    finally:
        child.kill()


def run(target: Callable[..., None], *arguments: Any) -> dict[str, list[str]]:
    """A child that runs to its end; how its steps ended."""
    return hear_all(start(target, *arguments))


def numbers_in(shard: Shard) -> list[int]:
    """The numbers of all rows of the shard, each as often as it is there."""
    with shard.open() as writer:
        return sorted(writer.scan().to_table()["number"].to_pylist())
