"""Compactions that overlap: one commits, the other starts over; nothing counts twice and nothing comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance import commit
from lance_memwal.lance.marks import COUNTER_SHARD, commit_number, unmarked
from tests.harness.points import run_once_at
from tests.kit.compaction import Kept, by_lance_only, with_key


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> Iterator[None]:
    yield
    crash_points.install(None)


OVERLAPS = [
    ("key", "compact.chosen"),
    ("key", "compact.after_fragments"),
    ("key", "compact.before_manifest"),
    ("merge", "compact.chosen"),
    ("merge", "compact.before_delete"),
    ("merge", "compact.after_delete"),
    ("merge", "compact.before_upsert"),
    ("append", "compact.chosen"),
    ("append", "compact.after_fragments"),
    ("append", "compact.before_manifest"),
    ("stable", "compact.chosen"),
    ("stable", "compact.after_fragments"),
    ("stable", "compact.before_manifest"),
    ("append_in_two", "compact.chosen"),
    ("append_in_two", "compact.after_fragments"),
]


@pytest.mark.parametrize(("kind", "point"), OVERLAPS)
@pytest.mark.parametrize("first_does", [1, 2, 4])
def test_a_compaction_that_was_overtaken_starts_over(tmp_path: Path, kind: str, point: str, first_does: int) -> None:
    kept = Kept(tmp_path / "t", kind, seed=first_does)
    if kind == "append_in_two":  # an empty table is filled in one commit, which is another way
        kept.generations(1)
        kept.table.compact()
    kept.generations(4)
    other = mw.open_table(kept.uri)
    happened = run_once_at(point, lambda: other.compact(max_generations=first_does))
    report = kept.table.compact()
    assert happened
    assert report.conflicts >= 1 or first_does == 4  # the same commit by somebody else is as good as our own
    assert kept.shown() == kept.expected
    assert kept.plain() == kept.expected


def _deleted_in_the_third(uri: str) -> mw.Table:
    """Key 1 is put in generation 1 and deleted in generation 3; the base table has never seen it.

    Its features rule the hand-made commit out: Lance merges.
    """
    schema = with_key(pa.schema([("id", pa.int64()), ("v", pa.int64())]))
    lance.write_dataset(schema.empty_table(), uri, **by_lance_only(uri))
    table = mw.enable(uri, sharding=mw.Unsharded())
    with table.writer(compaction=None) as writer:
        for step, action in enumerate([lambda: None, lambda: None, lambda: writer.delete([1])]):
            writer.put({"id": [1, 100 + step] if step == 0 else [100 + step], "v": [step] * (2 if step == 0 else 1)})
            action()
            writer.flush()
    return table


def _overtake(table: mw.Table) -> list[int]:
    """Generations 1 and 2 are compacted by another one between the passes of a compaction of 1 to 3."""
    other = mw.open_table(table.uri)
    happened = run_once_at("compact.before_upsert", lambda: other.compact(max_generations=2))
    table.compact()
    assert happened
    return sorted(lance.dataset(table.uri).to_table()["id"].to_pylist())


def test_a_deleted_key_does_not_come_back_when_compactions_overlap(tmp_path: Path) -> None:
    table = _deleted_in_the_third(str(tmp_path / "t"))
    assert 1 not in _overtake(table)


def test_the_commit_number_is_what_keeps_it_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the protection off (no number is proposed) Lance lets both commits in, and a deleted key returns.

    Key 100 is left out of the first compaction so that the two touch different rows.
    """
    table = _deleted_in_the_third(str(tmp_path / "t"))
    real = commit._merge

    def without_number(base: object, build: object, rows: object, marks: dict[str, int] | None) -> None:
        kept = None if marks is None else {s: n for s, n in marks.items() if s != COUNTER_SHARD}
        real(base, build, rows, kept)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "_merge", without_number)
    fold = _only_new_rows(monkeypatch)
    assert 1 in _overtake(table)
    assert fold


def _only_new_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the overtaken compaction write only the row of generation 3, as if 1 and 2 had been deletes elsewhere."""
    from lance_memwal.compact import run

    calls: list[int] = []
    real = run.merge_rows

    def narrowed(base: object, deletes: object, upserts: object, marks: dict[str, int]) -> object:
        calls.append(max(marks.values()))
        if calls == [3]:
            third = pa.record_batch([pa.array([102]), pa.array([2])], schema=base.schema)  # type: ignore[attr-defined]
            return real(base, deletes, lambda: iter([third]), marks)  # type: ignore[arg-type]
        return real(base, deletes, upserts, marks)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "merge_rows", narrowed)
    return calls


def test_the_commit_number_grows_by_one_and_is_no_shard(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    for count in range(1, 4):
        kept.generations(1)
        kept.table.compact()
        assert commit_number(kept.table.base) == count
    assert COUNTER_SHARD not in kept.table.details().compacted
    assert COUNTER_SHARD not in [info.shard_id for info in kept.table.shards()]


class _StoppedError(Exception):
    """The compactor ends here."""


def _stop() -> None:
    raise _StoppedError


def test_between_the_two_commits_of_an_append_readers_count_every_row_once(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "append_in_two")
    kept.generations(1)
    kept.table.compact()
    kept.generations(2)
    assert not kept.table.base.takes_hand_commit
    run_once_at("compact.between_commits", _stop)
    with pytest.raises(_StoppedError):
        kept.table.compact()
    assert unmarked(kept.table.base)
    assert kept.shown() == kept.expected
    assert mw.open_table(kept.uri).scan(consistency="flushed").count_rows() == sum(kept.expected.values())
    kept.table.dataset.delete("false")  # somebody else commits meanwhile
    assert kept.shown() == kept.expected
    kept.generations(1)
    kept.table.compact()
    assert not unmarked(kept.table.base)
    assert kept.plain() == kept.expected


def test_appends_of_others_to_the_base_are_kept(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "append")
    kept.generations(2)
    extra = {"id": 1000, "version": 0, "note": "direct"}

    def append() -> None:
        lance.write_dataset(pa.Table.from_pylist([extra], schema=kept.table.schema), kept.uri, mode="append")

    run_once_at("compact.before_manifest", append)
    report = kept.table.compact()
    kept.appended.append(extra)
    assert report.conflicts == 1
    assert kept.plain() == kept.expected
