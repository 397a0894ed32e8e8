"""What names and filters among the options of a read mean: as Spark means them, in terms of the table.

Owns `resolved_options` and `columns_of`.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lance_memwal.spark.dialect import as_spark_reads
from lance_memwal.spark.options import Options, resolved
from lance_memwal.spark.pin import pin_table
from lance_memwal.table import newest_base, open_table


def resolved_options(options: Options) -> Options:
    """The options of a read, with names as the table has them and a filter as Spark reads it."""
    if options.columns is None and options.filter is None:
        return options
    schema, exactly = columns_of(options), options.case_sensitive
    columns, text = options.columns, options.filter
    if columns is not None:
        columns = tuple(resolved(name, schema.names, case_sensitive=exactly) for name in columns)
    if text is not None:
        text = as_spark_reads(text, schema, zone=options.time_zone, case_sensitive=exactly)
    return replace(options, columns=columns, filter=text)


def columns_of(options: Options) -> pa.Schema:
    """The columns that readers see of the table that these options name."""
    if options.as_of is not None:
        return pin_table(replace(options, filter=None)).schema.columns
    return newest_base(open_table(options.path, storage_options=options.storage_options)).columns.shown.columns
