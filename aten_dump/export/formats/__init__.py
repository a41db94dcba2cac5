"""One file for each target of an export; `write` is what the table in `targets.py` names.

In: the chosen calls, and a temporary file or folder. Out: what the other tool reads.
"""
