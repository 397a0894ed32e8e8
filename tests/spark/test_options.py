"""Options of the format: everything that is misspelt or does not fit is said."""

from __future__ import annotations

import pytest

import lance_memwal as mw
from lance_memwal.spark.options import Options


def test_defaults_and_values_are_parsed_whatever_the_case() -> None:
    options = Options.parse({"path": "/t", "OPERATION": "delete", "inlinebytes": "8m", "columns": "a, b"})
    assert (options.operation, options.inline_bytes, options.columns) == ("delete", 8 << 20, ("a", "b"))
    assert options.consistency == "fresh"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "URI"),
        ({"operatoin": "upsert"}, "did you mean 'operation'"),
        ({"operation": "replace"}, "upsert, append, update, delete"),
        ({"consistency": "newest"}, "fresh, flushed"),
        ({"inlineBytes": "4 metres"}, "bytes"),
        ({"txnVersion": "-1"}, "number"),
        ({"txnVersion": "1"}, "txnAppId"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"maxRowsPerTrigger": "0"}, ">= 1"),
        ({"columns": " , "}, "column names"),
        ({"sequenceBy": "n", "duplicates": "last"}, "exclude"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(given: dict[str, str], message: str) -> None:
    with pytest.raises(mw.InvalidInputError, match=message):
        Options.parse({"path": "/t"} | given if given else {})


def test_credentials_reach_the_store_and_no_repr() -> None:
    options = Options.parse({"path": "s3://b/t", "storage.aws_secret_access_key": "hidden"})
    assert options.storage_options == {"aws_secret_access_key": "hidden"}
    assert "hidden" not in repr(options)
