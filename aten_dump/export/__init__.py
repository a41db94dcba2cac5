"""Dumps in the formats of other tools: one file for each target, one table of them (`targets.py`).

In: the reader's handles, a step and rank at a time, a tensor at a time.
Out: files or a folder under a temporary name, which gets its final name when all is written.
"""

from .job import Exported, export_dump
from .targets import TARGETS

__all__ = ["TARGETS", "Exported", "export_dump"]
