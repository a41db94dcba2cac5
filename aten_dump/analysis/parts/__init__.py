"""Work that one side does in parts: rows of a batch, micro-batches, positions of a sequence.

In: both sides evaluated once more, each value as it is made. Out: which values are blocks of the other side's.
"""
