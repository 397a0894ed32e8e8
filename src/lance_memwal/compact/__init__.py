"""Published generations become rows of the base table.

`run` chooses generations and folds them, `trim` lets manifests forget what nobody needs; `policy` says when it is time.
How rows and progress get into the base table together is `lance.commit`.
"""
