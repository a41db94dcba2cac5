"""Holds a step back until something happens: ring, held steps, conditions, signals between ranks.

In: the records of a step.
Out: the same records, to the real sink, once a trigger has fired.
"""
