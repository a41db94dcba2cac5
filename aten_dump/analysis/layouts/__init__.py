"""Comparison of runs in different parallel layouts: all ranks of each side together.

In: the ranks of one step on both sides.
Out: the same evidence as `judging/`.
"""
