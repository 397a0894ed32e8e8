"""`make demo`: a short story that shows what exists, on a temporary table, with real processes.

Owns the story and its plain output, no logic of the engine. Invariant: every figure that it prints was measured in this
run, and a promise that does not hold makes it fail.

Called by: `python -m memwal.demo`, which starts itself again for the other processes of the story.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import lance
import pyarrow as pa

from memwal import CorruptDataError, FencedError, ShardManifestStore, ShardWriter, WalAppender, WalTailer
from memwal.clock import SYSTEM_CLOCK
from memwal.store.location import resolve
from memwal.store.paths import wal_entry_path

__all__ = ["main"]

_ENTRIES = 200
_ROWS = 20
_ACKED_BEFORE_KILL = 100
_POLL_SECONDS = 0.005
_Number = TypeVar("_Number", int, float)


@dataclass(slots=True)
class _Story:
    """What the chapters share: the place, the figures so far."""

    uri: str
    shard_id: str
    figures: list[tuple[str, str]] = field(default_factory=list)

    def note(self, what: str, value: str) -> None:
        self.figures.append((what, value))


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell the story; 0 if everything that it promises was seen."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        return _ROLES[arguments[0]](*arguments[1:])
    print("memwal demo: a write-ahead log on plain files, one writer at a time, no server")
    with tempfile.TemporaryDirectory(prefix="memwal-demo-") as directory:
        story = _Story(f"{directory}/table", SYSTEM_CLOCK.uuid4())
        first = _claim(story)
        _append_while_another_process_follows(story, first)
        _kill_a_writer(story)
        _wake_the_first_writer(story, first)
        _recover(story)
        _flip_a_bit(story)
        _write_a_table(story, f"{directory}/people")
        _summary(story)
    return 0


def _chapter(number: int, title: str) -> None:
    print(f"\n{number}. {title}")


def _say(text: str) -> None:
    print(f"   {text}")


def _check(holds: bool, promise: str) -> None:
    if not holds:
        raise SystemExit(f"demo failed: {promise}")


# ------------------------------------------------------------------------------------------------------- chapters


def _claim(story: _Story) -> WalAppender:
    _chapter(1, "Claim a shard")
    writer = WalAppender.open(story.uri, story.shard_id)
    manifest = ShardManifestStore(story.uri, story.shard_id).read_latest()
    _check(manifest is not None and manifest.writer_epoch == writer.epoch == 1, "the manifest names the owner")
    _say(f"shard {story.shard_id} is ours: epoch {writer.epoch}, recorded in manifest version 1")
    return writer


def _append_while_another_process_follows(story: _Story, writer: WalAppender) -> None:
    _chapter(2, f"Append {_ENTRIES} entries of {_ROWS} rows while another process follows the log")
    follower = _start("follow", story.uri, story.shard_id, str(_ENTRIES))
    _read_line(follower)  # it is waiting for the first entry
    seconds = [_timed(partial(writer.append, [_batch(number)])) for number in range(_ENTRIES)]
    seen, _ = follower.communicate(timeout=60)
    delays = sorted(int(line) for line in seen.split())
    _check(len(delays) == _ENTRIES, "the other process sees every entry")
    p50, p99 = _percentile(seconds, 50) * 1e3, _percentile(seconds, 99) * 1e3
    _say(f"each append returned after fsync: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    _say(f"the other process saw all {len(delays)} entries, p50 {_percentile(delays, 50)} ms after they were made")
    story.note("rows acknowledged", f"{_ENTRIES * _ROWS:,}")
    story.note("append with fsync, p50 / p99", f"{p50:.1f} / {p99:.1f} ms")
    story.note("freshness in another process, p50 / p99", f"{_percentile(delays, 50)} / {_percentile(delays, 99)} ms")


def _kill_a_writer(story: _Story) -> None:
    _chapter(3, "Another process takes the shard over, and is killed in the middle (SIGKILL)")
    child = _start("write", story.uri, story.shard_id)
    acked = [int(_read_line(child)) for _ in range(_ACKED_BEFORE_KILL)]
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate(timeout=60)
    acked += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    tailer = WalTailer(story.uri, story.shard_id)
    entries = [tailer.read_entry(position) for position in range(1, tailer.next_position())]
    of_child = {entry.position for entry in entries if entry is not None and entry.writer_epoch == 2 and entry.batches}
    lost = set(acked) - of_child
    _check(not lost, "what was acknowledged is in the log")
    _say(f"it acknowledged {len(acked)} entries before it died; {len(of_child)} are in the log, {len(lost)} lost")
    story.note("entries acknowledged before SIGKILL / lost", f"{len(acked)} / {len(lost)}")


def _wake_the_first_writer(story: _Story, first: WalAppender) -> None:
    _chapter(4, "The first writer, which knows nothing of all this, tries to go on")
    before = WalTailer(story.uri, story.shard_id).next_position()
    try:
        first.append([_batch(0)])
    except FencedError as error:
        _say(f"{type(error).__name__}: {error}")
    else:
        _check(False, "a fenced writer acknowledges nothing")
    _check(WalTailer(story.uri, story.shard_id).next_position() == before, "a fenced writer leaves nothing behind")
    story.note("appends acknowledged by the fenced writer", "0")


def _recover(story: _Story) -> None:
    _chapter(5, "A new owner opens the shard and goes on where the log ends")
    opened: list[WalAppender] = []
    seconds = _timed(lambda: opened.append(WalAppender.open(story.uri, story.shard_id)))
    position = opened[0].append([_batch(0)])
    entry = WalTailer(story.uri, story.shard_id).read_entry(position)
    _check(entry is not None and entry.writer_epoch == opened[0].epoch == 3, "the new owner writes with its epoch")
    _say(f"epoch {opened[0].epoch} after {seconds * 1e3:.1f} ms; its first entry is at position {position}")
    story.note("takeover", f"{seconds * 1e3:.1f} ms")


def _flip_a_bit(story: _Story) -> None:
    _chapter(6, "One bit of an entry flips on the disk")
    store, path = resolve(story.uri).store, wal_entry_path(story.shard_id, 7)
    data = bytearray(store.get(path))
    data[len(data) // 2] ^= 1
    store.put(path, bytes(data))
    try:
        WalTailer(story.uri, story.shard_id).read_entry(7)
    except CorruptDataError as error:
        _check(error.position == 7, "damage is reported with its position")
        _say(f"{type(error).__name__} at position {error.position}: reported, not served and not skipped")
    else:
        _check(False, "damage is detected")
    story.note("flipped bits detected", "1 of 1")


def _write_a_table(story: _Story, uri: str) -> None:
    _chapter(7, "A Lance table with a key takes upserts and deletes; then its writer is gone without a flush")
    key = pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
    people = pa.table({"id": [1, 2], "name": ["ada", "bob"]}, schema=pa.schema([key, pa.field("name", pa.string())]))
    lance.write_dataset(people, uri).initialize_mem_wal()
    shard_id = SYSTEM_CLOCK.uuid4()
    writer = ShardWriter.open(uri, shard_id=shard_id)
    writer.put([{"id": 1, "name": "ada lovelace"}, {"id": 3, "name": "grace"}])
    writer.delete([2])
    writer.abort()  # nothing is flushed: all that is left is the log
    opened: list[ShardWriter] = []
    seconds = _timed(lambda: opened.append(ShardWriter.open(uri, shard_id=shard_id)))
    fresh = sorted(row["name"] for row in opened[0].scan().to_table().to_pylist())
    _check(fresh == ["ada lovelace", "grace"], "replay brings back what was acknowledged")
    _say(f"reopened in {seconds * 1e3:.1f} ms from the log alone: {', '.join(fresh)} are in memory, bob stays deleted")
    opened[0].close()
    peer = lance.dataset(uri).mem_wal_writer(shard_id)
    seen = sorted(row["name"] for row in peer.lsm_scanner().to_table().to_pylist())
    peer.close()
    _check(seen == fresh, "plain pylance reads the same rows")
    _say(f"closed, so flushed to a generation; plain pylance opens the shard and reads {', '.join(seen)}")
    story.note("recovery of a writer by replay", f"{seconds * 1e3:.1f} ms")
    story.note("rows read by plain pylance", f"{len(seen)} of {len(fresh)}")


def _summary(story: _Story) -> None:
    width = max(len(what) for what, _ in story.figures)
    print("\nSummary")
    for what, value in story.figures:
        print(f"   {what.ljust(width)}   {value}")
    print(
        "\nNext: README.md (what exists, what is planned), docs/design/wal.md (how this works), make test, make bench"
    )


# ------------------------------------------------------------------------------------------------- the other processes


def _follow(uri: str, shard_id: str, count: str) -> int:
    """Print how many milliseconds after its making each entry was seen."""
    print("ready", flush=True)
    entries = WalTailer(uri, shard_id).follow(start=1, poll_seconds=_POLL_SECONDS)
    for _, entry in zip(range(int(count)), entries, strict=False):
        print(SYSTEM_CLOCK.now_ms() - entry.batches[0].column("made_ms")[0].as_py(), flush=True)
    return 0


def _write(uri: str, shard_id: str) -> int:
    """Append for ever, printing each position once it is acknowledged."""
    writer = WalAppender.open(uri, shard_id)
    number = 0
    while True:
        number += 1
        print(writer.append([_batch(number)]), flush=True)


_ROLES: dict[str, Callable[..., int]] = {"follow": _follow, "write": _write}


def _start(role: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "memwal.demo", role, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own interpreter and module


def _read_line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    _check(line.endswith("\n"), "the other process runs")
    return line


def _batch(number: int) -> pa.RecordBatch:
    first = number * _ROWS
    columns = {
        "id": pa.array(range(first, first + _ROWS), pa.int64()),
        "name": pa.array([f"event {row}" for row in range(first, first + _ROWS)]),
        "made_ms": pa.array([SYSTEM_CLOCK.now_ms()] * _ROWS, pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _timed(call: Callable[[], object]) -> float:
    start = SYSTEM_CLOCK.monotonic()
    call()
    return SYSTEM_CLOCK.monotonic() - start


def _percentile(values: Sequence[_Number], percent: int) -> _Number:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    sys.exit(main())
