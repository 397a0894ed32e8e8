"""This process: what runs beside the callers, how callers wait, and what a forked child may do.

`background` is the one small set of threads of all writers. `waiting` lets callers wait in a way that an interrupt or a
signal handler cannot break, `turns` lets one caller at a time have its turn, and `aio` makes coroutines
of calls that wait. `directory_lock` lets processes of one host take turns. `forking` closes in a child what belongs to its
parent. `deadline` bounds every wait, `cache` what the process keeps of tables. `telemetry` passes numbers to OpenTelemetry.
"""
