"""What keeps a table small and sound: flushing tails, collecting garbage, verifying, repairing, counting.

`maintain` puts the steps together that a schedule would call one by one;
each step is also there by itself. `pins` says which versions stay.
`indexes` makes and lists those of the base table, `drop` removes a table.
"""
