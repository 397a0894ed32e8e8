"""Decoders with one fault each: the fuzzer must find every one of them."""

import ctypes
import hashlib
import time

from lance_memwal.errors import CorruptDataError


def honest(data: bytes) -> None:
    if data != b"honest bytes":
        raise CorruptDataError("not honest")


def raises_another_error(data: bytes) -> None:
    if len(data) < 4:
        {}[len(data)]


def crashes(data: bytes) -> None:
    if len(data) < 4:
        ctypes.string_at(0)


def trusts_a_length(data: bytes) -> None:
    if data != b"honest bytes":
        bytearray(1 << 40)


def never_ends(data: bytes) -> None:
    while data != b"honest bytes":
        time.sleep(0.01)


def never_comes_back(data: bytes) -> None:
    """A count out of the bytes is trusted by native code, in which no handler of signals runs."""
    if data != b"honest bytes":
        hashlib.pbkdf2_hmac("sha256", data, b"salt", (1 << 31) - 1)
