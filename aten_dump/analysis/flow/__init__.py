"""How data flow in two recordings, and which values of both are the same thing.

In: two recordings and pairs of calls.
Out: the maker of each value, equal views, equivalent regions.
"""
