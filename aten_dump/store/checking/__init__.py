"""Checks that the files of a step and rank are what docs/format.md says.

In: an index as it was read, shards.
Out: a FormatError, or sentences about every problem.
"""
