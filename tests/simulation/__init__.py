"""Whole lives of a table in one seeded order, without Lance, a disk or time (docs/development.md).

`schedule` runs threads one at a time and is their clock, `store` and `lance` keep everything in memory, `world` makes
processes that crash and networks that fail, `log_lives`, `once_lives` and `writer_lives` live, and judge what is left.
`python -m tests.simulation` runs many lives, or one again.
"""
