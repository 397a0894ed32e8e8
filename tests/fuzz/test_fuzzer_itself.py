"""The fuzzer finds each kind of fault and says how to see it again."""

from __future__ import annotations

import re
from collections import Counter

import bad_decoders
import fuzzer
import pytest
from mutations import MAX_INPUT_BYTES, every_cut_and_flip, mutate

CORPUS = [b"honest bytes"]


def test_a_decoder_that_only_refuses_passes() -> None:
    counts = fuzzer.fuzz_decoder("bad_decoders:honest", CORPUS, 300)
    assert sum(counts.values()) == 300
    assert counts["refused"] > 250


def test_an_unexpected_exception_is_found_and_can_be_reproduced_from_the_message() -> None:
    with pytest.raises(AssertionError, match="KeyError") as error:
        fuzzer.fuzz_decoder("bad_decoders:raises_another_error", CORPUS, 2_000, seed=7)
    found = re.search(r"seed (\d+), input (\d+)", str(error.value))
    assert found is not None
    with pytest.raises(KeyError):
        bad_decoders.raises_another_error(mutate(int(found[1]), int(found[2]), CORPUS))


def test_a_crash_of_the_process_is_found_with_its_input() -> None:
    with pytest.raises(AssertionError, match=r"input \d+: child ended with signal SIGSEGV") as error:
        fuzzer.fuzz_decoder("bad_decoders:crashes", CORPUS, 2_000, seed=7)
    found = re.search(r"seed (\d+), input (\d+)", str(error.value))
    assert found is not None
    assert len(mutate(int(found[1]), int(found[2]), CORPUS)) < 4


def test_a_decoder_that_trusts_a_hostile_length_hits_the_memory_limit() -> None:
    with pytest.raises(AssertionError, match="MemoryError"):
        fuzzer.fuzz_decoder("bad_decoders:trusts_a_length", CORPUS, 100)


@pytest.mark.parametrize("decoder", ["never_ends", "never_comes_back"])
def test_a_decoder_that_never_ends_is_stopped_also_in_native_code(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzer, "SECONDS_PER_INPUT", 1)
    with pytest.raises(fuzzer.FuzzError, match="took longer than 1 seconds") as error:
        fuzzer.fuzz_decoder(f"bad_decoders:{decoder}", CORPUS, 100, seed=7, first=3)
    assert f"in {decoder}" in str(error.value), "it shows where it was"
    assert mutate(7, error.value.number, CORPUS) != CORPUS[0]


def test_a_corpus_that_the_decoder_refuses_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="not honest"):
        fuzzer.fuzz_decoder("bad_decoders:honest", [b"dishonest bytes"], 10)


def test_every_cut_and_every_flip_is_made_once() -> None:
    inputs = list(every_cut_and_flip([b"abc"]))
    assert len(inputs) == len(set(inputs)) == 3 + 24
    assert inputs + list(every_cut_and_flip([b"de"])) == list(every_cut_and_flip([b"abc", b"de"]))


def test_mutated_inputs_are_repeatable_diverse_and_bounded() -> None:
    corpus = [bytes(range(256)) * 2, b"short", b""]
    inputs = [mutate(1, number, corpus) for number in range(2_000)]
    assert inputs == [mutate(1, number, corpus) for number in range(2_000)]
    assert len(set(inputs)) > 1_200
    sizes = Counter(len(data).bit_length() for data in inputs)
    assert len(sizes) > 10
    assert max(map(len, inputs)) <= MAX_INPUT_BYTES
