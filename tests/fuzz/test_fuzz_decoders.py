"""Hostile bytes make every decoder answer or refuse: no other error, no crash, no memory bomb, no hang."""

from __future__ import annotations

import pytest
from decoders import LOGS, OTHERS, TARGETS, any_of_the_others_corpus
from fuzzer import fuzz_decoder
from inputs import PLACE

from tests.harness.profile import scaled

SMALL_BYTES = 1_100
SMALL = [name for name in LOGS if any(len(data) <= SMALL_BYTES for data in TARGETS[name].corpus())]


@pytest.mark.scaled
@pytest.mark.parametrize("name", scaled(ci=LOGS, prove=tuple(TARGETS)))
def test_mutated_bytes_are_refused_or_decoded(name: str) -> None:
    runs = scaled(ci=5_000, prove=100_000)
    target = TARGETS[name]
    counts = fuzz_decoder(target.place, target.corpus(), runs, is_asked=target.is_asked)
    assert sum(counts.values()) == runs
    assert counts["refused"] > runs // 20, "the mutations hardly hurt: they do not reach the decoder"


def test_mutated_records_texts_and_messages_are_refused_or_decoded() -> None:
    runs = 400 * len(OTHERS)
    counts = fuzz_decoder("decoders:any_of_the_others", any_of_the_others_corpus(), runs, is_asked=True)
    assert counts["refused"] > runs // 2


@pytest.mark.parametrize("name", TARGETS)
def test_the_committed_bytes_are_accepted_and_are_those_that_are_written_today(name: str) -> None:
    target = TARGETS[name]
    for data in target.corpus():
        target.decode(data)
    assert target.corpus()[: len(target.build())] == target.build(), f"python tests/fuzz --renew {name}"


def test_the_corpus_is_small_and_has_nothing_that_no_decoder_takes() -> None:
    files = [file for file in PLACE.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == set(TARGETS)
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("name", SMALL)
def test_every_cut_and_every_flipped_bit_is_refused_or_decoded(name: str) -> None:
    target = TARGETS[name]
    small = [data for data in target.corpus() if len(data) <= SMALL_BYTES][:2]
    counts = fuzz_decoder(target.place, small, 0, is_asked=target.is_asked)
    assert sum(counts.values()) == sum(len(data) * 9 for data in small)
    assert counts["refused"] > 0


def test_a_bomb_of_the_largest_size_allowed_stays_within_the_memory_limit() -> None:
    assert fuzz_decoder("decoders:protobuf_bombs", [b"any"], 1) == {"taken": 1, "refused": 0}
