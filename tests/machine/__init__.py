"""One model of the whole public API: a dict with a history, and a table that must agree with it whatever happens.

`model` is the dict and its time, `setup` says what the table is and how its writers are set, `steps` lists everything that may
happen (as plain values, so that the same steps can be done to several tables), `life` is a table with its model.
What a step does is in `writing`, `one_shard`, `keeping`, `reading`, `following` and `others`; `doing` finds it by its name.
`exceptions` names what of the API no step uses, and why.
"""
