"""Joins the ranks of one side to one graph where they meet, and finds values that are parts of the other side's.

In: a recorded step of all ranks. Out: one recording of all their calls, and the comparison of two of these.
"""
