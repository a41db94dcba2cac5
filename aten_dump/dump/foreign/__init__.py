"""Dumps of other tools, read-only, behind the same handles as ours.

In: their directories. Names, numbers and file names in them are data: no file outside of them is opened.
Out: a `RankDump` for each step and rank; `formats.py` says what a reader of a format is.
"""
