"""Rows of one generation in memory: appended, never changed, and captured by readers without copying.

`memtable` holds the rows, `blobs` the large values beside them, `key_index` finds the newest row of a key, `index` holds
what searches use, and `live` tells the readers of this process whose memtables there are.
"""
