"""Kills, corrupted files, ill-typed records and hostile dumps, by the thousand: ``python -m tests.torture``."""
