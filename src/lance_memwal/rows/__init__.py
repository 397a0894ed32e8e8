"""Rows in memory: what a table's columns are, how input becomes rows, and how rows are named, compared and chosen.

`schema` says what the columns of a table are, `column_types` which types they may have.
Input goes through `ingest`, which makes batches of whatever a user hands
over, and `fit`, which makes them rows of the table, once (`validity`: each value is one of its type). Rows from storage go
through `adapt`, which makes them fit today's columns (`field_match`: one column). `key_encoding` and `keys` name rows by
their primary key, `one_key` as Python has it. `blobs`, `json_values` and `uuid_text` are the columns that have several
forms. `projection` says what a path like `meta.a` means, `filter` chooses rows by a condition, whose text `sql` reads.
`merging` is what a table says of later writes of a key, `sharding` which shard a row belongs to. `notebook` is what
notebooks show. Nothing here knows storage.
"""
