"""The files by which a run that records is switched from outside.

In come what a person asks for and what ranks answer; out go small JSON files in the dump's directory, written whole.
"""
