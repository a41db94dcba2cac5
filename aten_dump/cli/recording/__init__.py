"""Subcommands about programs that are recorded: begin one, switch one that runs.

In come a command or the directory of a dump; out goes a process that records, or a file that one reads.
"""
