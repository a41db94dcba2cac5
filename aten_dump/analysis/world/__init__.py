"""The ranks of one side as one graph, joined where they meet; values of one side that are parts of the other's.

In: a recorded step of all ranks. Out: one recording of all their calls, and what a comparison of two such comes to.
"""
