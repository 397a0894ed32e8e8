"""Every cut and every flipped bit of an entry is noticed, or its rows are intact: all of them, not a sample."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fuzz.fuzzer import fuzz_decoder
from lance_memwal.errors import CorruptDataError
from lance_memwal.log.entry import EntryDecoder, EntryEncoder, encode_mark, encode_sentinel
from lance_memwal.log.footer import FOOTER_BYTES
from lance_memwal.types import TOMBSTONE_FIELD, EntryFooter, EntryTransaction, SeenTransaction, Transaction, WalEntry

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), TOMBSTONE_FIELD])
SEEN = {"app": SeenTransaction(7, 1_700_000_000_000, "q")}


def rows(count: int) -> pa.RecordBatch:
    columns = {"id": list(range(count)), "name": [f"n{n}" for n in range(count)], "_tombstone": [False] * count}
    return pa.RecordBatch.from_pydict(columns, schema=FIELDS)


def one_kilobyte() -> bytes:
    """An entry with rows, a transaction and a map, of 1 KB and no more than a row's difference."""
    encoder = EntryEncoder(FIELDS, 3, 2)
    txns = (EntryTransaction(Transaction("app", 7, "q"), 0, 1),)
    footer = EntryFooter(table="0123abcd", written_ms=1_700_000_000_000, txns=txns, seen=SEEN)
    return next(data for count in range(1, 100) if len(data := encoder.encode([rows(count)], footer)) >= 1024)


ENTRIES = {
    "an entry of 1 KB": one_kilobyte(),
    "a sentinel": encode_sentinel(4, EntryFooter(written_ms=1, seen=SEEN)),
    "a mark": encode_mark(4, EntryFooter(written_ms=1, seen=SEEN, seal=3)),
}


def seen_rows(entry: WalEntry) -> list[Any]:
    return [entry.writer_epoch, entry.generation, entry.is_sentinel, *(batch.to_pylist() for batch in entry.batches)]


def decoders() -> dict[str, EntryDecoder]:
    """One that meets the schema for the first time, and one that knows it from the entry before."""
    known = EntryDecoder()
    known.decode(EntryEncoder(FIELDS, 3, 2).encode([rows(1)]), 1)
    return {"new": EntryDecoder(), "knows the schema": known}


def outcome(decoder: EntryDecoder, data: bytes, whole: WalEntry) -> str:
    try:
        entry = decoder.decode(data, whole.position)
    except CorruptDataError as error:
        return "refused" if error.position == whole.position else "refused elsewhere"
    if seen_rows(entry) != seen_rows(whole):
        return "wrong rows"
    return "intact" if entry == whole else "rows intact"


def test_the_entry_of_one_kilobyte_has_about_one_kilobyte() -> None:
    assert 1024 <= len(one_kilobyte()) <= 1100


@pytest.mark.parametrize("decoder", ["new", "knows the schema"])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_single_flipped_bit_is_refused(name: str, decoder: str) -> None:
    data, under_test = ENTRIES[name], decoders()[decoder]
    whole = under_test.decode(data, 5)
    outcomes: Counter[str] = Counter()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        outcomes[outcome(under_test, bytes(flipped), whole)] += 1
    assert outcomes == {"refused": 8 * len(data)}


@pytest.mark.parametrize("decoder", ["new", "knows the schema"])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_cut_is_refused_but_the_one_that_leaves_all_rows(name: str, decoder: str) -> None:
    data, under_test = ENTRIES[name], decoders()[decoder]
    whole = under_test.decode(data, 5)
    outcomes = {size: outcome(under_test, data[:size], whole) for size in range(len(data))}
    intact = [size for size, result in outcomes.items() if result != "refused"]
    stream = int.from_bytes(data[-FOOTER_BYTES : -FOOTER_BYTES + 8], "little")
    assert intact == [stream]
    assert outcomes[stream] == "rows intact"


def test_every_byte_that_is_added_or_taken_out_anywhere_is_refused() -> None:
    data, decoder = one_kilobyte(), EntryDecoder()
    for at in range(len(data) + 1):
        for changed in (data[:at] + b"\0" + data[at:], data[:at] + data[at + 1 :] if at < len(data) else data + b"\1"):
            with pytest.raises(CorruptDataError):
                decoder.decode(changed, 1)


@pytest.mark.parametrize("kind", ["rows", "tombstones", "sentinel"])
def test_no_cut_and_no_flip_of_an_entry_of_pylance_does_more_than_give_an_error_or_a_valid_value(kind: str) -> None:
    log = GOLDEN / "pylance" / "pk_table" / "_mem_wal" / "11111111-2222-4333-8444-555555555555" / "wal"
    position = {"rows": 1, "tombstones": 2, "sentinel": 3}[kind]
    data = (log / f"{format(position, '064b')[::-1]}.arrow").read_bytes()
    counts = fuzz_decoder("decoders:wal_entry", [data], 0)  # in a child process: a crash is a result there
    assert sum(counts.values()) == 9 * len(data)
    assert counts["refused"] > len(data)
