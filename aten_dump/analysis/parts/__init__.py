"""Finds work that one side does in parts: rows of a batch, micro-batches, positions of a sequence.

In: both sides evaluated again, each value when it is computed. Out: which values are blocks of the other side's.
"""
