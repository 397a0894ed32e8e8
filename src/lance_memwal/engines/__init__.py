"""Doors to query engines: what they ask of a table becomes a scan, and nothing else.

`dataset` shows a table as pyarrow shows files: DuckDB, Polars, DataFusion and pandas libraries read it with their columns
and filters pushed down. `sql` runs one SQL query by DataFusion. `polars_source` answers Polars.
"""
