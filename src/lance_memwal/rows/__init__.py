"""Rows in memory: what a table's columns are, how input becomes rows, and how rows are named, compared and chosen.

`schema` says what the columns of a table are. `ingest` turns whatever a user hands over into batches, `adapt` makes rows
from storage fit today's columns. `key_encoding` and `keys` name rows by their primary key. `filter` chooses rows by a
condition, whose text `sql` reads. `sharding` says which shard a row belongs to. Nothing here knows storage.
"""
