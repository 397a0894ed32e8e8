"""Errors cross from one process to another as they are: pools and Spark pickle them."""

from __future__ import annotations

import copy
import pickle

import pytest

import lance_memwal as mw
from lance_memwal.errors import ObjectExistsError, ObjectNotFoundError

ERRORS = [
    mw.InvalidInputError("fix it"),
    mw.FencedError(1, 2),
    mw.FencedError(3, 7, "shard x"),
    mw.WriterPoisonedError("reopen"),
    mw.ConflictError("again"),
    mw.UnavailableError("later", ambiguous=False, retryable=False),
    mw.CorruptDataError("damaged", path="a/b", position=3),
    mw.UnsupportedFormatError("newer"),
    mw.CollectedError("gone"),
    mw.ClosedError("closed"),
    ObjectNotFoundError("a/b"),
    ObjectExistsError("a/b"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: mw.MemWalError) -> None:
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is type(error)
        assert (str(same), repr(same), same.args) == (str(error), repr(error), error.args)
        assert same.__dict__ == error.__dict__
        assert same.retryable == error.retryable
