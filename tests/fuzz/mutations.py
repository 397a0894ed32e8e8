"""Turn honest bytes into hostile ones, the same ones for the same seed.

Owns the kinds of damage. Invariant: `mutate(seed, number, corpus)` depends on its arguments alone, so a failure is
reproduced from the two numbers that it prints.
"""

import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence

MAX_INPUT_BYTES = 1 << 20
_EXTREMES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_VARINTS = (
    b"\xff" * 9 + b"\x01",
    b"\xff" * 10,
    b"\xff" * 4 + b"\x0f",
    b"\xff" * 4 + b"\x07",
    b"\x80" * 12,
    b"\x80\x80\x00",
)
_TOKEN = re.compile(rb'-?[0-9]+|"[^"]*"|null|true|false')
_TOKENS = (
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1.5",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"18446744073709551616",
    b"9" * 400,
    b"9" * 5_000,
    b'""',
    b'"\\ud800"',
    b'"\\u0000"',
    b'"../../etc/passwd"',
    b"[]",
    b"{}",
    b"[[]]",
    b'{"":null}',
)
_NESTED = b"".join(b"\x0a" + struct.pack("B", size) for size in range(126, 0, -2))


def _at(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = _at(rng, data)
    return start, min(len(data), start + int(2 ** (rng.random() * 10)))


def _flip_bits(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    out = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(out))
        out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def _set_bytes(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    end = min(end, start + 8)
    fill = rng.choice((b"\0", b"\xff", b"\x80", b"\x7f", bytes([rng.randrange(256)])))
    return data[:start] + fill * (end - start) + data[end:]


def _cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] if rng.random() < 0.8 else data[at:]


def _delete(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 8, 16, 64))) + data[at:]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 8)) + data[end:]


def _splice(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    start, end = _span(rng, other)
    at = _at(rng, data)
    return (
        data[:at]
        + (other[start:end] if rng.random() < 0.5 else other[start:])
        + data[at + rng.choice((0, end - start)) :]
    )


def _hostile_number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    form = rng.choice(("<B", "<H", "<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(form)
    number = rng.choice((*_EXTREMES, len(data), len(data) + 1, max(0, len(data) - 1), rng.getrandbits(64)))
    step = rng.choice((1, size))
    at = rng.randrange(max(1, len(data) - size + 1)) // step * step
    return data[:at] + struct.pack(form, number & ((1 << 8 * size) - 1)) + data[at + size :]


def _hostile_varint(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] + rng.choice(_VARINTS) + data[at + rng.choice((0, 1, 2)) :]


def _bomb(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A few bytes, often: what is small on the wire and large in memory."""
    start, end = _span(rng, data)
    unit = (
        rng.choice(
            (data[start : min(end, start + 64)], b"\x42\x00", b"\x3a\x00", b"\x0b", b"\x0a\x00", rng.randbytes(2))
        )
        or b"\0"
    )
    body = unit * (rng.choice((256, 4_096, 65_536)) // len(unit))
    return data[:start] + body + data[start:]


def _nest(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _at(rng, data)
    deep = rng.choice((_NESTED, b"\x0b" * 5_000, b"[" * 20_000, b'{"a":' * 5_000, b"\x3a\xff\xff\x03" * 500))
    return data[:at] + deep + data[at:]


def _hostile_token(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A number or a text becomes something that its reader may not have thought of."""
    found = [match.span() for match in _TOKEN.finditer(data[:4_096])]
    start, end = rng.choice(found) if found else (_at(rng, data),) * 2
    return data[:start] + rng.choice(_TOKENS) + data[end:]


def _garbage(rng: random.Random, _: bytes, __: Sequence[bytes]) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 7, 28, 64, 1_000)))


_KINDS: tuple[tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], int], ...] = (
    (_flip_bits, 30),
    (_set_bytes, 12),
    (_hostile_number, 16),
    (_hostile_varint, 10),
    (_cut, 10),
    (_delete, 8),
    (_insert, 8),
    (_repeat, 6),
    (_splice, 8),
    (_hostile_token, 10),
    (_bomb, 2),
    (_nest, 1),
    (_garbage, 1),
)


def mutate(seed: int, number: int, corpus: Sequence[bytes]) -> bytes:
    """The hostile input of this number: a corpus item with one to four kinds of damage."""
    rng = random.Random(f"{seed}/{number}")
    data = rng.choice(corpus)
    kinds = rng.choices(
        [kind for kind, _ in _KINDS], [weight for _, weight in _KINDS], k=rng.choice((1, 1, 1, 2, 3, 4))
    )
    for kind in kinds:
        data = kind(rng, data, corpus)[:MAX_INPUT_BYTES]
    return data


def every_cut_and_flip(corpus: Sequence[bytes]) -> Iterator[bytes]:
    """Each corpus item cut at every length, then with every single bit flipped."""
    for data in corpus:
        for size in range(len(data)):
            yield data[:size]
        for bit in range(len(data) * 8):
            out = bytearray(data)
            out[bit >> 3] ^= 1 << (bit & 7)
            yield bytes(out)
