"""Decoders of what a person types: filters and keys."""


def filter_text(data: bytes) -> None:
    """A filter as it comes in a query string: read by us, then planned by Lance, on no rows."""
    import pyarrow as pa

    from lance_memwal.rows.filter import RowFilter
    from lance_memwal.rows.sql import values_of

    schema = pa.schema([("id", pa.int64()), ("note", pa.string()), ("x", pa.float64())])
    found = RowFilter(data.decode("utf-8", "surrogateescape"), schema)
    values_of("id", found.predicates())


def filter_text_corpus() -> list[bytes]:
    return [
        b"id = 3 and note in ('a', 'b''c') or not (x between 1 and 2)",
        b"id >= -7 and x < 1e3 and `note` is not null",
        b"x = cast('2' as double) and note like '%y%'",
    ]


def typed_key(data: bytes) -> None:
    """A key as a person types it, on the command line or in the page."""
    import pyarrow as pa

    from lance_memwal.errors import InvalidInputError
    from lance_memwal.rows.schema import TableSchema
    from lance_memwal.rows.text_values import typed_key

    text, refused = data.decode("utf-8", "surrogateescape"), 0
    kinds = (pa.int32(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.binary(4), pa.uuid(), pa.date32())
    for kind in kinds:
        fields = [pa.field("a", kind, nullable=False), pa.field("b", pa.string(), nullable=False)]
        for key in (("a", "b"), ("a",)):
            try:
                typed_key(TableSchema(pa.schema(fields), key), text)
            except InvalidInputError:
                refused += 1
    if refused == 2 * len(kinds):
        raise InvalidInputError("all were refused")


def typed_key_corpus() -> list[bytes]:
    return [b'["7", "x"]', b'{"a": 1, "b": "y"}', b'["2026-01-31T12:00:00+01:00", "z"]', b'["00112233", "z"]']
