"""Holds a step back in memory until something happens: held steps, their windows, conditions, signals between ranks.

In: the records of a step, and its tensors.
Out: the same records, to the real sink, once a trigger has fired.
"""
