"""Hours of a table's life in minutes: processes that write, read, follow, maintain and die, and a ledger that none of them owns.

`children` are the processes, `table` is what they work on, `ledger` knows what each key may show, `figures` what must not grow,
`crowd` starts, kills and hears the processes, `episodes` are overload and a full disk. `python -m tests.soak` (or `make soak`)
runs all of it.
"""
