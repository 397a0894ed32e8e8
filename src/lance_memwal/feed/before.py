"""What a row was before it changed.

Owns `BeforeImages`. It keeps, per shard, the table as it was at one place of the log (a snapshot) and the newest rows that
changed since. Invariants:

1. The image of a row is that of its key just before the change: in the same chunk, else among the rows that changed since
   the snapshot, else in the snapshot.
2. A key that was there gives `update_before` and `update_after`, or `delete` with the row that is gone; a key that was not
   gives `insert`, and its delete gives nothing.
3. Memory is bounded: when the rows since the snapshot are many, or it is old (collection keeps what it needs only for a
   while), a new snapshot is taken, and used for each shard from the place on that it names. One that cannot be had now is
   asked for again later.
4. Nothing is done per row.
5. Other threads may ask for `end_of`; everything else is for the thread that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.clock import Clock
from lance_memwal.feed.changed_rows import ChangedRows, Shape
from lance_memwal.feed.cursor import Place
from lance_memwal.feed.past_rows import find_rows
from lance_memwal.feed.time_travel import State
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.read.lookup import lookup_rows
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import ShardView, Tiers, missing_is_collected
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.keys import key_array, one_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location
from lance_memwal.types import TOMBSTONE, ShardManifest

_HELD_BYTES = 64 << 20
_RENEW_SECONDS = 600.0
_ABOVE_ALL = 1 << 62  # the generation of rows that changed since the snapshot: newer than any other
_OPS = pa.array(["insert", "update_before", "update_after", "delete"])
_INSERT, _BEFORE, _AFTER, _DELETE = range(4)


class BeforeImages:
    """The rows before their changes, for the feed of one table."""

    def __init__(
        self,
        location: Location,
        shape: Shape,
        state: State,
        places: Mapping[str, Place],
        renew: Callable[[], State | None],
        clock: Clock,
    ) -> None:
        """`state` is at or before `places`, from which the feed starts; `renew` gives the table as it is now, or None if that
        cannot be had."""
        self._location = location
        self._shape = shape
        self._schema = shape.stored.shown
        self._state = state
        self._places = dict(places)
        self._renew = renew
        self._clock = clock
        self._next: State | None = None
        self._since = clock.monotonic()
        self._shards: dict[str, tuple[State, MemTable]] = {}

    @property
    def state(self) -> State:
        """The oldest snapshot that is in use."""
        return self._state

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """All snapshots that are in use, the oldest first."""
        return tuple(state.snapshot for state in (self._state, self._next) if state is not None)

    def end_of(self, shard_id: str) -> Place | None:
        """The place at which the next snapshot takes over in this shard: no chunk may pass it."""
        following = self._next
        return None if following is None or self._has_come_to(following, shard_id) else following.place(shard_id)

    def absorb(self, changes: ChangedRows) -> None:
        """Know of changes that are handed out, or were before."""
        if not self._schema.primary_key:
            return
        since = self._of(_shard(changes))[1]
        since.append(changes.rows, pa.array(changes.dead) if changes.dead.any() else None)

    def reached(self, shard_id: str, place: Place, changes: ChangedRows | None) -> None:
        """Note that a shard was read up to this place, and what changed on the way."""
        if changes is not None:
            self.absorb(changes)
        self._places[shard_id] = place
        if self._next is not None:
            self._take_over(self._next)

    def renew_if_due(self) -> None:
        """Take a new snapshot if the one in use is old, or too much changed since."""
        if self._next is not None or not self._is_due():
            return
        following = self._renew()
        if following is not None:
            self._next, self._since = following, self._clock.monotonic()
            self._take_over(following)

    def _is_due(self) -> bool:
        held = sum(since.size_bytes for _, since in self._shards.values())
        return held > _HELD_BYTES or self._clock.monotonic() - self._since > _RENEW_SECONDS

    def _has_come_to(self, following: State, shard_id: str) -> bool:
        return self._places.get(shard_id, Place()) >= following.place(shard_id)

    def _take_over(self, following: State) -> None:
        """Go on with the next snapshot in every shard that has come to it."""
        waiting = False
        for shard_id in {*self._shards, *self._places, *following.places}:
            if not self._has_come_to(following, shard_id):
                waiting = True
            elif self._of(shard_id)[0] is not following:
                self._shards[shard_id] = (following, _no_changes(self._schema))
        if not waiting:
            self._state, self._next = following, None

    def _of(self, shard_id: str) -> tuple[State, MemTable]:
        found = self._shards.get(shard_id)
        if found is None:
            state = self._next
            if state is None or not self._has_come_to(state, shard_id):
                state = self._state
            found = self._shards[shard_id] = (state, _no_changes(self._schema))
        return found

    # --------------------------------------------------------------------------------------------------------- images

    def dressed(self, changes: ChangedRows) -> pa.RecordBatch:
        """Return the changes with the rows before them, in the columns of the feed."""
        if not self._schema.primary_key:
            return self._shape.dressed(changes, pa.repeat("insert", changes.num_rows))
        keys = _keys_of(self._schema, changes.rows)
        before, images = self._images(changes, keys)
        source, image, ops = _steps(changes.dead, before)
        found = changes.take(source)
        rows = images.take(pa.array(image))
        alive = np.zeros(len(source), dtype=np.bool_)
        shown = replace(found, rows=rows, dead=alive)
        return self._shape.dressed(shown, _OPS.take(pa.array(ops)))

    def _images(self, changes: ChangedRows, keys: pa.Array) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        """Return, for each change, the index in the returned batch of the row before it; -1 if there was no row."""
        previous = _previous(keys)
        count = changes.num_rows
        first = np.flatnonzero(previous < 0)
        known = self._known(changes.rows.take(pa.array(first)), _shard(changes))
        before = np.where((previous >= 0) & ~changes.dead[previous], previous, -1)
        if known.num_rows:
            at = (
                pc.index_in(keys.take(pa.array(first)), value_set=_keys_of(self._schema, known))
                .fill_null(-1)
                .to_numpy()
            )
            before[first] = np.where(at >= 0, count + at, -1)
        table = pa.Table.from_batches([changes.rows, *known.to_batches()], schema=changes.rows.schema)
        arrays = [one_array(column) for column in table.columns]
        return before, pa.RecordBatch.from_arrays(arrays, schema=table.schema)

    def _known(self, rows: pa.RecordBatch, shard_id: str) -> pa.Table:
        """Return the live rows of these keys just before the changes that are read next."""
        state, since = self._of(shard_id)
        keys = rows.select(list(self._schema.primary_key))
        recent = _changed(self._location, self._schema, shard_id, since, keys)
        open_keys = pc.invert(pc.is_in(_keys_of(self._schema, keys), value_set=_keys_of(self._schema, recent)))
        older = self._at_state(shard_id, state, keys.filter(open_keys))
        alive = recent.filter(pa.array(~tombstone_flags(recent))).drop_columns([TOMBSTONE])
        return pa.concat_tables([alive, older])

    def _at_state(self, shard_id: str, state: State, keys: pa.RecordBatch) -> pa.Table:
        """Return the live rows of these keys at the state, in the columns of the feed."""
        tiers = state.tiers(self._location)
        shards = tuple(view for view in tiers.shards if view.shard_id == shard_id)
        with missing_is_collected("start again from a snapshot"):
            return find_rows(replace(tiers, shards=shards), keys, self._schema)


def _no_changes(schema: TableSchema) -> MemTable:
    return MemTable(schema, _ABOVE_ALL, 0, 0)


def _keys_of(schema: TableSchema, rows: pa.Table | pa.RecordBatch) -> pa.Array:
    return key_array([rows.column(name) for name in schema.primary_key])


def _changed(location: Location, schema: TableSchema, shard_id: str, since: MemTable, keys: pa.RecordBatch) -> pa.Table:
    """Return the newest rows of these keys among the changes `since` a state, tombstones included."""
    view = ShardView(ShardManifest(0, shard_id), (since.capture(),))
    tiers = Tiers(location, schema, None, (view,))
    return lookup_rows(tiers, keys, schema.columns.names, with_tombstones=True)


def _shard(changes: ChangedRows) -> str:
    if changes.shard_id is None:
        raise AssertionError("rows of a snapshot have nothing before them")
    return changes.shard_id


def _previous(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Per row the row before it that has the same key, -1 if there is none: [a, b, a, a] has [-1, -1, 0, 2]."""
    codes = keys.dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    previous = np.full(len(codes), -1, dtype=np.int64)
    same = codes[order[1:]] == codes[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _steps(
    dead: npt.NDArray[np.bool_], before: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    """The rows that are handed out: the change of each, the row that it shows, and what it is.

    A put over row 7 as change 0, a put of a new key as change 1 and a delete of row 9 as change 2 give the changes
    [0, 0, 1, 2], the rows [7, 0, 1, 9] and update_before, update_after, insert, delete.
    """
    was = before >= 0
    counts = np.where(dead, was.astype(np.int64), 1 + was)
    source = np.repeat(np.arange(len(dead)), counts)
    first = np.ones(len(source), dtype=np.bool_)
    first[1:] = source[1:] != source[:-1]
    shows_before = first & was[source]
    image = np.where(shows_before, before[source], source)
    ops = np.where(was[source], np.where(first, _BEFORE, _AFTER), _INSERT)
    ops = np.where(dead[source], _DELETE, ops).astype(np.int8)
    return source, image, ops
