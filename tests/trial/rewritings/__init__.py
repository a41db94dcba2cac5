"""A second trial of `compare`: programs written otherwise, and slips that people make, each at a line of its own.

In: the programs of `programs/`, one file each. Out: one line for each case, and a table of what came of them.
A program asks `on.way("name")` where it can be written otherwise, and `on.bug("name")` where a slip is planted. The names in a file are
its cases. A line that asks for a bug is where the bug is; a comment `# at name` marks another line where it shows.
"""
