"""Tensors out of recorded bytes: whole ones, slices, and blocks one after the other.

In: what the index says of a value, and its bytes.
Out: tensors on the CPU, in memory of their own.
"""
