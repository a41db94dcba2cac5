"""The subcommands, a file each; `cli/main.py` has the table of them.

In: arguments of the command line.
Out: text on standard output or files, and an exit code.
"""
