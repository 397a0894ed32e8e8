"""Published generations become rows of the base table.

`run` chooses generations, folds them and lets manifests forget what the base table holds; `policy` says when it is time.
How rows and progress get into the base table together is `lance.commit`.
"""
