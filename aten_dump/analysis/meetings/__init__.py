"""Collectives and messages, seen from all ranks that take part in them.

In: the recordings of one step by several ranks.
Out: who met whom at which call, whether what a rank got is what the others sent, and which of several causes was first.
"""
