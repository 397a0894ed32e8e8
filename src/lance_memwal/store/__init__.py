"""Storage below the engine: the port, its adapters, retry and metering, and the paths of a table.

Owns everything that touches object storage or the filesystem, except what Lance reads and writes itself. The engine
imports `location`, `port` and `paths`; nothing else here is needed above.
"""
