"""What users call: a table and its doors.

`table` is the facade: each method is a call into a room below. `making` makes tables, `lancedb_tables` takes those
of LanceDB, `writers` opens their writers, and `verbs` keeps the one through which a table itself is written. `looking` looks at
one again and again.
"""

from lance_memwal.table.lancedb_tables import from_lancedb
from lance_memwal.table.making import create_table, enable
from lance_memwal.table.table import Table, newest_base, open_table

__all__ = ["Table", "create_table", "enable", "from_lancedb", "newest_base", "open_table"]
