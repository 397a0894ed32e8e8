"""The process that is killed or stopped: one life over a whole table, telling every step before and after it happens.

Owns `live_table`. A life writes through a table writer, shares the table with others, appends as a sink does, or only keeps it
tidy; beside its writes it compacts, collects, maintains, makes checkpoints, reads the changes and changes the columns. Every
thread has keys of its own, so that it knows what each of its writes leaves. Messages go through a pipe; what was sent before a
kill arrives.
"""

import faulthandler
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Final

import lance
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.table import newest_base
from lance_memwal.types import Transaction
from lance_memwal.write import request
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender, TakeoverPolicy
from tests.harness.kill_points import obey_points
from tests.harness.oracle import Write
from tests.harness.processes import Voice, run_threads, tell_failure
from tests.harness.table_shapes import (
    KEYS,
    STREAM,
    Attempt,
    Repeat,
    Shown,
    TableLife,
    added_name,
    check_checkpoints,
    consume,
    digest_of,
    judge_settled,
    moment_of,
    show,
    shown_by_key,
)

_PATIENCE: Final = TakeoverPolicy(wait_seconds=60, idle_seconds=0.0)
_LARGE: Final = 24
_TIDIES: Final = ("compact", "compact", "gc", "maintain", "checkpoint", "checkpoint", "consume", "drop")
_QUERY: Final = "query"  # with it, a version that is older than the newest one is a repeat, and no mistake


def live_table(life: TableLife, pipe: Connection) -> None:
    """Look, write, end. Every failure is told."""
    voice = Voice(pipe)
    faulthandler.register(signal.SIGUSR1)  # where is it, if it is silent?
    try:
        obey_points(voice.say, kill_at=life.kill_at, stop_at=life.stop_at)
        _Body(life, voice).run()
        voice.say("done")
    except BaseException:
        tell_failure(voice)
    if life.ending == "linger":
        signal.pause()


class _Body:
    """What the threads of one life share."""

    def __init__(self, life: TableLife, voice: Voice) -> None:
        self.life = life
        self.voice = voice
        started = time.monotonic()
        self.table = mw.open_table(life.uri)
        self.sharding = self.table.sharding
        self.columns = _columns_of(self.table, life.retired)
        self.state: Mapping[int, Shown] = {}
        if life.shows:
            self.state = show(self.table, life, voice)
            check_checkpoints(self.table, life.checkpoints)
        else:
            self.state = shown_by_key(life.shape.rows_of(self.table.scan().to_table()), life)
            judge_settled(self.state, life)
        self.writer: Any = None
        self.sink: TableAppender | None = None
        if life.mode == "sink":
            most = life.settings.get("max_entry_bytes")
            look_up = Reader(NewestBase(newest_base(self.table))).stored_rows
            self.sink = TableAppender(OnceAppender(life.uri, max_entry_bytes=most, look_up=look_up), policy=_PATIENCE)
        elif life.mode != "upkeep":
            self.writer = self.table.writer(shared=life.mode == "shared", **dict(life.settings))
        if life.repeats:
            for repeat, number in zip(life.repeats, range(life.first_number, life.own_numbers), strict=True):
                _Scribe(self, 0).repeat(repeat, number)
            self.state = show(self.table, life, voice)  # they are of any thread's keys
        if life.shows:
            voice.say("opened", time.monotonic() - started)

    def run(self) -> None:
        run_threads(self.life.threads, lambda thread: _Scribe(self, thread).run())
        self._end()

    def _end(self) -> None:
        if self.writer is None or self.life.ending == "linger":
            return
        try:
            if self.life.ending == "close":
                self.voice.say("closing", self.life.name)
                self.writer.close()
                self.voice.say("closed", self.life.name)
            else:
                self.writer.abort()
        except mw.FencedError:
            if not self.life.may_be_fenced:
                raise
            self.voice.say("fenced")


class _Scribe:
    """One thread of a life; its keys are its own."""

    def __init__(self, body: _Body, thread: int) -> None:
        self._body = body
        self._life = life = body.life
        self._voice = body.voice
        self._table = body.table
        self._writer = body.writer
        self._shape = life.shape
        self._thread = thread
        self._who = ("sink", life.twin) if life.twin else (life.name, thread)
        self._draw = random.Random(life.seed)
        self._durable = bool(life.settings.get("durable_write", True))
        self._next_column = life.next_column
        of_life = [key for key in range(KEYS) if key % life.parts == life.part]
        self._own = of_life[thread :: life.threads]
        own = self._own if self._shape.has_key else body.state
        self._state: dict[int, Shown | None] = {key: body.state.get(key) for key in own}
        self._loose: set[int] = set()  # keys whose last write promised nothing yet
        self._dropped: set[str] = set()  # checkpoints

    def run(self) -> None:
        try:
            for count in range(self._life.writes):
                number = self._life.own_numbers + count * self._life.threads + self._thread
                self._step(number)
        except mw.FencedError:
            if not self._life.may_be_fenced:
                raise
            self._voice.say("fenced")

    def _step(self, number: int) -> None:
        # What a number is follows from nothing before it: twins do the same, however each of them fares.
        self._draw = random.Random(f"{self._life.seed} {number}")
        draw = self._draw.random()
        if self._life.mode == "upkeep" or (draw < 0.07 and self._thread == 0):
            self._tidy(number)
        elif draw < 0.09 and self._writer is not None:
            self._drain()
        elif draw < 0.11 and self._life.changes_columns:
            self._change_columns()
        elif self._life.mode == "sink":
            self._append(number)
        else:
            self._draw.choice(self._verbs())(number)

    def _verbs(self) -> Sequence[Callable[[int], None]]:
        name, shared = self._shape.name, self._life.mode == "shared"
        if name == "append":
            return [self._put, self._put, self._put_txn, *([] if shared else [self._put_nowait])]
        verbs = [self._put, self._put, self._put, self._put_absent, self._insert, self._delete]
        if name == "first_row":
            return verbs
        verbs += [self._update]
        if name == "last_write":
            return [*verbs, self._put_stale]
        verbs += [self._put_txn, self._update_where, self._delete_where, *([] if shared else [self._put_nowait])]
        return verbs if self._shape.has_blobs else [*verbs, self._compare_and_set]

    # --------------------------------------------------------------------------------------------------------- writes

    def _keys(self, number: int, among: Sequence[int] | None = None) -> list[int]:
        count = _LARGE if self._draw.random() < 0.08 else self._draw.choice((1, 1, 2, 3, 6))
        if not self._shape.has_key:
            return [number * 32 + i for i in range(count)]
        keys = self._own if among is None else among
        return self._draw.sample(keys, min(count, len(keys)))

    def _live(self) -> list[int]:
        return [key for key in self._own if self._state[key] is not None]

    def _dead(self) -> list[int]:
        return [key for key in self._own if self._state[key] is None]

    def _whole(self, number: int) -> Shown:
        return Shown(number, number, sum(1 << column for column in self._body.columns))

    def _rows(self, keys: Sequence[int], number: int, sequence: int | None = None) -> pa.Table:
        return self._shape.rows(keys, number, self._body.columns, sequence)

    def _write(self, number: int, left: Mapping[int, Shown | None], call: Callable[[], Any], *, durable: bool) -> Any:
        """Say what the write leaves, make it, say that it returned."""
        routed = self._shape.shards_of(self._body.sharding, list(left)) if left else {}
        writes = {
            shard: Write(number, tuple(keys), values=tuple(left[key] for key in keys)) for shard, keys in routed.items()
        }
        self._voice.say("issued", self._who, number, writes)
        done = call()
        self._voice.say("returned", self._who, number, durable or self._durable)
        self._state.update(left)
        (self._loose.difference_update if durable or self._durable else self._loose.update)(left)
        return done

    def _put(self, number: int) -> None:
        keys = self._keys(number)
        kept = self._shape.name == "first_row"
        left = {key: self._whole(number) for key in keys if not (kept and self._state[key] is not None)}
        self._write(number, left, lambda: self._writer.put(self._rows(keys, number), missing="null"), durable=False)

    def _put_txn(self, number: int) -> None:
        attempt = self._attempt(f"app-{self._life.name}-{self._thread}", number, self._keys(number))
        self._transact(attempt)
        if self._draw.random() < 0.3:
            self._judge(attempt, self._put_once(attempt), frozenset(attempt.keys))

    def repeat(self, repeat: Repeat, number: int) -> None:
        """Make a transaction again, with rows that say `number`: a shard that has it keeps what it has."""
        attempt, before = replace(repeat.attempt, number=number), self._body.state
        shows = {key for key, now in before.items() if now.number == repeat.attempt.number}
        held = repeat.held | {shard for shard, keys in attempt.keys.items() if shows.intersection(keys)}
        self._judge(attempt, self._transact(attempt, held), held)

    def _attempt(self, app: str, number: int, keys: Sequence[int]) -> Attempt:
        routed = self._shape.shards_of(self._body.sharding, keys)
        return Attempt(app, number, number, {shard: tuple(part) for shard, part in routed.items()})

    def _transact(self, attempt: Attempt, held: frozenset[str] = frozenset()) -> Mapping[str, bool]:
        """Try it; which shards skipped it. Those that have it (`held`) must not write anything."""
        self._voice.say("tries", attempt)
        taking = [key for shard, keys in attempt.keys.items() if shard not in held for key in keys]
        left: dict[int, Shown | None] = dict.fromkeys(taking, self._whole(attempt.number))
        once = self._append_once if attempt.app == STREAM else self._put_once
        skipped: Mapping[str, bool] = self._write(attempt.number, left, lambda: once(attempt), durable=True)
        self._voice.say("transacted", attempt)
        return skipped

    def _put_once(self, attempt: Attempt) -> Mapping[str, bool]:
        keys = [key for part in attempt.keys.values() for key in part]
        rows, txn = self._rows(keys, attempt.number), (attempt.app, attempt.version)
        done = self._writer.put(rows, txn=txn, missing="null")
        return {shard: result.skipped for shard, result in done.shards.items()}

    def _append_once(self, attempt: Attempt) -> Mapping[str, bool]:
        """The rows, once in every shard that has some, as tasks of a stream append them."""
        sink, skipped = self._body.sink, {}
        assert sink is not None
        for shard, keys in attempt.keys.items():
            rows = self._rows(keys, attempt.number).combine_chunks().to_batches()
            done = sink.append(shard, rows, txn=Transaction(attempt.app, attempt.version, _QUERY))
            skipped[shard] = done.skipped
            if not done.skipped:
                self._voice.say("wrote", attempt.app, attempt.version, shard)
            if self._draw.random() < 0.05:
                sink.flush(shard)
        return skipped

    def _judge(self, attempt: Attempt, skipped: Mapping[str, bool], held: frozenset[str]) -> None:
        """A shard skips what it has, and nothing else."""
        expected = {shard: shard in held for shard in attempt.keys}
        if skipped != expected:
            raise AssertionError(f"I5: {attempt} was skipped by {skipped}, and must be by {expected}")

    def _put_nowait(self, number: int) -> None:
        keys = self._keys(number)
        left = dict.fromkeys(keys, self._whole(number))
        self._write(
            number,
            left,
            lambda: request.begin_on(
                self._writer, request.Write("put", self._rows(keys, number), "null"), drain=True
            ).wait(),
            durable=True,
        )

    def _put_absent(self, number: int) -> None:
        keys = self._keys(number)
        left = {key: self._whole(number) for key in keys if self._state[key] is None}
        self._write(
            number,
            left,
            lambda: self._writer.put(self._rows(keys, number), if_absent=True, missing="null"),
            durable=False,
        )

    def _insert(self, number: int) -> None:
        if keys := self._keys(number, self._dead()):
            left = dict.fromkeys(keys, self._whole(number))
            self._write(number, left, lambda: self._insert_rows(self._rows(keys, number)), durable=False)

    def _insert_rows(self, rows: pa.Table) -> mw.WriteResult:
        try:
            return self._writer.insert(rows)
        except mw.InvalidInputError:  # another life added a column, which these rows leave out
            return self._writer.put(rows, if_absent=True, missing="null")

    def _put_stale(self, number: int) -> None:
        """Rows that come too late: none of them counts."""
        if keys := self._keys(number, self._live()):
            rows = self._rows(keys, number, sequence=0)
            self._write(number, {}, lambda: self._writer.put(rows, missing="null"), durable=False)

    def _updated(self, keys: Sequence[int], number: int) -> dict[int, Shown | None]:
        known = {key: self._state[key] for key in keys}
        return {key: Shown(number, now.kept, now.columns) for key, now in known.items() if now is not None}

    def _update(self, number: int) -> None:
        if keys := self._keys(number, self._live()):
            rows = self._shape.parts(keys, number)
            self._write(number, self._updated(keys, number), lambda: self._writer.update(rows), durable=False)

    def _update_where(self, number: int) -> None:
        if keys := self._keys(number, self._live()):
            where, values = _among(keys), self._shape.update_values(number)
            left = self._updated(keys, number)
            self._write(number, left, lambda: self._writer.update(where=where, values=values), durable=False)

    def _compare_and_set(self, number: int) -> None:
        if not (live := self._live()):
            return
        key = self._draw.choice(live)
        [new] = self._rows([key], number).to_pylist()
        name = self._shape.key_value(key)
        before = self._writer.get(name)
        if before is None:
            raise AssertionError(f"I1: the row of key {key}, which was acknowledged, is not there")
        new |= {column: None for column in before if column not in new}
        left = {key: self._whole(number)}
        done = self._write(number, left, lambda: self._writer.compare_and_set(name, before, new), durable=False)
        if not done:
            raise AssertionError(f"I7: {before} was read, and is not there to compare with")

    def _delete(self, number: int) -> None:
        keys = self._keys(number)
        options = {"sequence": number} if self._shape.name == "last_write" else {}
        named = self._shape.key_table(keys)
        self._write(number, dict.fromkeys(keys), lambda: self._writer.delete(named, **options), durable=False)

    def _delete_where(self, number: int) -> None:
        if keys := self._keys(number, self._live()):
            self._write(number, dict.fromkeys(keys), lambda: self._writer.delete(where=_among(keys)), durable=False)

    def _append(self, number: int) -> None:
        """What a sink appends; twins append the same."""
        self._transact(self._attempt(STREAM, number, self._keys(number)))

    # ---------------------------------------------------------------------------------------------------- beside them

    def _drain(self) -> None:
        if self._thread == 0:
            self._voice.say("draining", self._life.name)
            self._writer.flush()
            self._voice.say("drained", self._life.name)
        else:
            self._writer.flush()
        self._loose.clear()

    def _tidy(self, number: int) -> None:
        table, draw = self._table, self._draw
        if self._life.collects:
            self._collect()
        elif self._life.mode == "upkeep" and draw.random() < 0.3:
            with self._flush_races():
                table.flush(idle_seconds=0, force=True)
        with self._races(mw.ConflictError):
            match draw.choice(_TIDIES + ("index",) * self._shape.is_searched):
                case "index":
                    if lance.dataset(self._life.uri).count_rows():
                        table.indexes.create("vector", "IVF_FLAT", num_partitions=2)
                case "compact":
                    table.compact(max_generations=draw.choice((None, None, 1, 3)))
                case "gc":
                    table.gc(grace_seconds=0)
                case "maintain":
                    table.maintain(grace_seconds=0, versions=draw.choice((None, timedelta(0))))
                case "checkpoint":
                    self._checkpoint(f"at-{number}-{self._life.name}")
                case "drop" if self._life.checkpoints:
                    self._drop_checkpoint(draw.choice(sorted(self._life.checkpoints)))
                case "consume" if self._life.consumes:
                    consume(table, self._shape, self._voice, draw)

    def _races(self, *lost: type[Exception]) -> AbstractContextManager[None]:
        """Chores that may lose a race against somebody; who is alone loses none."""
        return nullcontext() if self._life.is_alone else suppress(*lost)

    def _flush_races(self) -> AbstractContextManager[None]:
        """A flush may also lose its directory: others collect what is not published, without a grace period."""
        return self._races(mw.ConflictError, mw.FencedError, mw.UnavailableError)

    def _collect(self) -> None:
        with self._flush_races():
            if not self._life.beside_shared:
                self._table.flush(idle_seconds=0, force=True)
            self._table.compact()
        self._table.gc(grace_seconds=0)

    def _checkpoint(self, name: str) -> None:
        self._table.checkpoints.create(name)
        kept = moment_of(self._table.at(name))
        self._judge_moment(name, kept)
        self._voice.say("checkpoint", name, digest_of(kept))

    def _judge_moment(self, name: str, kept: Mapping[int, tuple[int, int]]) -> None:
        """What this thread knows to be in the table is in it as of now; what twins know may be older."""
        known = {key: now for key, now in self._state.items() if key not in self._loose}
        pairs = {key: None if now is None else (now.number, now.kept) for key, now in known.items()}
        wrong = {key: (pair, kept.get(key)) for key, pair in pairs.items() if pair != kept.get(key)}
        if self._life.twin:
            wrong = {key: (pair, there) for key, (pair, there) in wrong.items() if pair and (not there or there < pair)}
        if wrong:
            raise AssertionError(f"I1: the new checkpoint {name} lacks what was acknowledged (known, there): {wrong}")

    def _drop_checkpoint(self, name: str) -> None:
        if name not in self._dropped:
            self._voice.say("drops", name)
            with self._races(mw.InvalidInputError):  # another process has dropped it
                self._table.checkpoints.drop(name)
            self._dropped.add(name)

    def _change_columns(self) -> None:
        """Add a column or drop one; this thread is the only one."""
        dataset = lance.dataset(self._life.uri)
        if self._body.columns and self._draw.random() < 0.4:
            column = self._body.columns[0]
            self._voice.say("drops column", column)
            dataset.drop_columns([added_name(column)])
            self._body.columns.remove(column)
            for key, now in self._state.items():
                self._state[key] = None if now is None else now._replace(columns=now.columns & ~(1 << column))
        elif self._next_column < 60:
            column, self._next_column = self._next_column, self._next_column + 1
            self._voice.say("adds column", column)
            dataset.add_columns(pa.field(added_name(column), pa.int64()))
            self._body.columns.append(column)
        self._writer.evolve_schema()


def _among(keys: Sequence[int]) -> str:
    return f"id IN ({', '.join(map(str, keys))})"


def _columns_of(table: mw.Table, retired: frozenset[int]) -> list[int]:
    """The added columns that the table has and that are in use."""
    return [int(name[1:]) for name in table.schema.names if name[0] == "x" and int(name[1:]) not in retired]
