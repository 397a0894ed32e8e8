"""Spark takes turns with writers, appenders and pylance at one table, and a dict says what it must hold."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lance_memwal.spark as ms
from tests.harness.profile import scaled
from tests.kit.turns import Play

OPTIONS = {"keep": {"missing": "keep"}, "absent": {"ifAbsent": True}, "newer": {"where": "excluded.a > a"}}
TYPES = {"id": "long", "a": "long", "b": "string", "ts": "long", "_tombstone": "boolean"}


def spark_turn(spark: Any, play: Play) -> None:
    """Write a frame or two in one of the ways; each key once, since only a sequence would say which row is later."""
    for _ in range(play.draw.randrange(1, 3)):
        kind = play.draw.choice(["whole", "keep", "absent", "newer"])
        terms, given, condition = play.terms(kind)
        rows = list({row["id"]: row for row in given}.values())
        if not rows:
            continue
        play.model.apply(rows, condition)
        schema = ", ".join(f"{name} {TYPES[name]}" for name in rows[0])
        frame = spark.createDataFrame([tuple(row.values()) for row in rows], schema)
        options = OPTIONS.get(kind, {}) if terms.need_a_look else {}
        if play.draw.random() < 0.5:
            frame.write.format("memwal").mode("append").options(**options).save(play.uri)
        else:
            ms.write_batch(frame, play.uri, 0, app_id=f"turn {len(play.steps)}", **options)
        play.check(f"spark {kind}")


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(scaled(ci=1, prove=40)))
def test_spark_takes_turns_with_other_writers(spark: Any, tmp_path: Path, seed: int) -> None:
    turn = partial(spark_turn, spark)
    Play(tmp_path / "t", seed, [turn] * 5).run(scaled(ci=4, prove=12))
