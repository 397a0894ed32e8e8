"""How a process looks at a table: every way to read it must show the same, and what is known must be there.

Owns `show` (all rows, told to the parent), what is compared with it (counts, look-ups, blobs, searches, what is settled), the
rows of a moment, and the feed. What differs within one process is an `AssertionError`; what the parent alone knows is told.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import lance_memwal as mw
from tests.harness.oracle import Row
from tests.harness.same_rows import require_same
from tests.harness.table_plan import TableLife
from tests.harness.table_shapes import KEYS, Shape, Shown, vector_of, word_of
from tests.harness.voice import Voice

__all__ = [
    "CONSUMER",
    "check_checkpoints",
    "consume",
    "digest_of",
    "judge_settled",
    "moment_of",
    "show",
    "shown_by_key",
    "tell",
    "without",
]

CONSUMER: Final = "follower"
_BLOBS_READ: Final = 3
_SEARCHED: Final = 2


def show(table: Any, life: TableLife, voice: Voice, *, every_blob: bool = False) -> dict[int, Shown]:
    """Tell all rows, by shard; an error if count, look-ups and gets show anything else (I7)."""
    shape, rows = life.shape, table.scan().to_table()
    counted = table.count_rows()
    if counted != rows.num_rows:
        raise AssertionError(f"I7: {counted} rows are counted, {rows.num_rows} are scanned")
    images: dict[int, bytes | None] = {}
    if shape.has_key:
        require_same("lookup", table.lookup(shape.key_table(range(KEYS))), rows, but="image")
    if shape.has_blobs:
        ids = rows.column("id").to_pylist()
        sample = ids if every_blob else random.Random(life.seed).sample(ids, min(_BLOBS_READ, len(ids)))
        images = {key: _blob(table, key) for key in sample}
    listed = [without(row, life.retired) for row in shape.rows_of(rows, images)]
    tell(listed, life, table, voice)
    shown = shown_by_key(listed, life)
    if shape.is_searched:
        _require_found(table, shown, random.Random(life.seed))
    return shown


def shown_by_key(rows: Sequence[Row], life: TableLife) -> dict[int, Shown]:
    """What each key shows."""
    return {row.key: without(row, life.retired).number for row in rows}  # type: ignore[misc]


def judge_settled(shown: Mapping[int, Shown], life: TableLife) -> None:
    """What nobody else writes now is as it was settled; an error if a scan shows anything else."""
    if life.settled is None or life.twin:
        return
    mine = [key for key in range(KEYS) if key % life.parts == life.part] if life.shape.has_key else life.settled
    wrong = {key: (life.settled.get(key), shown.get(key)) for key in mine if life.settled.get(key) != shown.get(key)}
    if wrong:
        raise AssertionError(f"I1: a scan shows other rows than those that were settled (settled, shown): {wrong}")


def _require_found(table: Any, shown: Mapping[int, Shown], draw: random.Random) -> None:
    """Some rows are found by their vectors and by their words, and nothing else is (I7)."""
    for key in draw.sample(sorted(shown), min(_SEARCHED, len(shown))):
        number, kept, _ = shown[key]
        nearest = table.search(vector_of(key, kept), column="vector", k=1, columns=["id"]).column("id").to_pylist()
        if nearest != [key]:
            raise AssertionError(f"I7: the row of key {key} is not the nearest to its own vector: {nearest}")
        word, same = word_of(number), sorted(other for other, now in shown.items() if now.number == number)
        if word is not None:
            found = table.search(text=word, column="note", k=KEYS, columns=["id"]).column("id").to_pylist()
            if sorted(found) != same:
                raise AssertionError(f"I7: a search for {word} finds {sorted(found)}, rows that have it are {same}")


def without(row: Row, retired: frozenset[int]) -> Row:
    """The row without columns that were dropped, or nearly."""
    shown = row.number
    assert isinstance(shown, Shown)
    mask = sum(1 << column for column in retired)
    return Row(row.key, shown._replace(columns=shown.columns & ~mask), row.intact)


def tell(listed: Sequence[Row], life: TableLife, table: Any, voice: Voice) -> None:
    """Tell rows, by shard."""
    home = {
        key: shard
        for shard, keys in life.shape.shards_of(table.sharding, [row.key for row in listed]).items()
        for key in keys
    }
    routed: dict[str, list[Row]] = {}
    for row in listed:
        routed.setdefault(home[row.key], []).append(row)
    voice.say("rows", routed)


def _blob(table: Any, key: int) -> bytes | None:
    file = table.get_blob(key, "image")
    if file is None:
        return None
    with file:
        return bytes(file.read())


def moment_of(view: Any) -> dict[int, tuple[int, int]]:
    """The rows of a moment: the write that touched each last, and the last that wrote it whole."""
    rows = view.scan(columns=["id", "number", "kept"]).to_table().to_pylist()
    found = {row["id"]: (row["number"], row["kept"]) for row in rows}
    if len(found) < len(rows):
        raise AssertionError(f"I5: keys are there more than once: {sorted(row['id'] for row in rows)}")
    return found


def digest_of(rows: Mapping[int, tuple[int, int]]) -> int:
    """What the rows of a moment come down to."""
    return zlib.crc32(repr(sorted(rows.items())).encode())


def check_checkpoints(table: mw.Table, expected: Mapping[str, int]) -> None:
    """Every checkpoint shows what it did when it was made (I8)."""
    for name, digest in expected.items():
        if digest_of(moment_of(table.at(name))) != digest:
            raise AssertionError(f"I8: the checkpoint {name} shows other rows than when it was made")


def consume(table: mw.Table, shape: Shape, voice: Voice, draw: random.Random) -> None:
    """Tell every change after the last commit, then commit."""
    wanted = [*shape.key_columns, "number", "kept"] if shape.has_key else ["id", "number", "kept"]
    consumer = table.consumer(CONSUMER, start="earliest", until="now", columns=wanted)
    for batch in consumer:
        names = ("id", "number", "kept", "_op")
        voice.say("changes", list(zip(*(batch.column(name).to_pylist() for name in names), strict=True)))
        if draw.random() < 0.3:
            consumer.commit()
    consumer.commit()
