"""Runs recorded ops again: one op, its arguments in shared memory, its rounding error, a graft, a script.

In: calls with their recorded inputs.
Out: results, and how far the recorded ones are from them.
"""
