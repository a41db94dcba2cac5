"""Pairs the calls of two recordings: keys, alignment, common subsequences, the user's mapping.

In: two RankDumps.
Out: pairs of calls and runs of calls without counterpart.
"""
