"""Published generations become rows of the base table.

`run` chooses and folds generations, `commit` puts rows and progress into the base table together, `superseded` finds the
rows that newer ones replaced, `policy` says when it is time.
"""
