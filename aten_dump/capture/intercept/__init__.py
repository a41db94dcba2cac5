"""Everything that sees the program run: torch's two modes and the wrappers around what they do not see.

In: the program's calls, through torch's mode stacks and wrapped functions.
Out: calls that begin and end, for `calls/`.
"""
