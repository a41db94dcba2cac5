"""Signatures: a few numbers that stand for a tensor's contents, and the numbers that values with equal ones share.

In: tensors in float64, as the evaluation makes them. Out: which values of two recordings are the same.
"""
