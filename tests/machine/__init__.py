"""One model of the whole public API: a dict with a history, and a table that must agree with it whatever happens.

`model` is the dict and its time, `setup` says what the table is and how its writers are set, `steps` lists everything that may
happen (as plain values, so that the same steps can be done to several tables), and `life` does them to a table and to the model
and compares.
"""
