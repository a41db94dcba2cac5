"""Dumps in the formats of other tools: one table of targets (`targets.py`), a file for each in `formats`.

In: the reader's handles, a step and rank at a time, a tensor at a time.
Out: files or a folder under a temporary name, which gets its final name when all is written.
"""
