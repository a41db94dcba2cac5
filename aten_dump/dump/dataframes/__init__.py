"""Calls and values as tables of pandas, polars or Arrow.

In: handles of calls.
Out: columns with types, and what the three libraries make of them; none is imported before it is asked for.
"""
