"""One owner, many processes.

The first process that needs a shard claims it as any writer does, and answers others with Arrow Flight. `record` is where
its address lies, `runtime` what the processes of one user on one host share (the token, a lock), `endpoint` where owners
listen and whom callers trust, `wire` the bytes between them. `office` is the one server of this process and `desk` what it
tells its callers; `channel` is the way to somebody else's, `together` lets puts of many threads share messages, and `caller`
is a shard at its end. `shared_shard` puts them together: a shard that is owned here or reached through its owner,
whichever it is now. `asked` lets somebody who looks on ask owners for their `numbers`.
"""
