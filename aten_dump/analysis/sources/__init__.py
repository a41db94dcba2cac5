"""Sources are values that no op of a step made; those of the target are matched with the baseline's.

In: two recorded steps, and what the steps before left. Out: contents for the baseline's sources, and the sources
without a counterpart.
"""
