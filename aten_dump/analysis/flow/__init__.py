"""How data flow in two recordings, and which values of both stand for the same thing.

In: two recordings and pairs of calls.
Out: who made what, the same views, regions that mean the same.
"""
