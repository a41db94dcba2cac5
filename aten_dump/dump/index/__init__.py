"""The records of one index as tables: typed rows, names, links, recomputed calls.

In: an index file, through `store`.
Out: rows and positions, for the handles above.
"""
