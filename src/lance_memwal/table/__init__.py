"""What users call: a table and its doors.

`table` is the facade: each method is a call into a package below, and `groups` holds its checkpoints, consumers and indexes.
`making` creates tables, `writers` opens their writers, and `verbs` keeps the one through which a table itself is written.
`looking` compares the statistics of a table over time.
"""

from lance_memwal.table.making import create_table, enable, from_lancedb
from lance_memwal.table.table import Table, newest_base, open_table

__all__ = ["Table", "create_table", "enable", "from_lancedb", "newest_base", "open_table"]
