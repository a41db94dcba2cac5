"""One step as one program: what all its ranks recorded, put together.

In: the ranks of a step.
Out: a recording that reads like one rank's.
"""
