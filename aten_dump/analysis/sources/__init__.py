"""Sources: what no op of a step made, and which of the target's stands for which of the baseline's.

In: two recorded steps, and what the steps before left. Out: contents for the baseline's sources, and the sources that
stand for nothing.
"""
