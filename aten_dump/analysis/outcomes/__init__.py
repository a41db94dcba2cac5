"""What one step leaves: memory that outlives it, and results that the program takes away.

In: the data flow of one recording; of an optimizer's step that of both, and what is known of them.
Out: places in memory from outside and who wrote them, results that no call computes with, steps that mean the same.
"""
