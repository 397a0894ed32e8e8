"""The JVM face of the Python source: what Spark's planner and SQL need and a Python source cannot give.

The Java files beside this one are compiled by Spark's own compiler and loaded into the running session (`load`), and
hand everything to Python: each scan to the pure Python source, with what was pushed down (`pushed`, whose filters
`predicates` writes); commands of the catalog and of procedures to `commands`, on the driver. Without the face all of
it is still there in Python: `format("memwal")` is then the pure Python source.
"""
