"""One owner, many processes.

The first process that needs a shard claims it as any writer does, and answers others with Arrow Flight. `record` is where
its address lies, `runtime` what the processes of one user on one host share (the token, a lock), `wire` the bytes between
them, `office` the one server of this process, `caller` the way to somebody else's. `shared_shard` puts them together: a
shard that is owned here or reached through its owner, whichever it is now.
"""
