"""A third trial of `compare`: the same work laid out otherwise: rows, micro-batches, caches, packed, ported, merged, resumed.

In: the programs of `programs/`, one model and its data each, and the layouts of `kinds/`. Out: one line for each case, and a table.
A layout is a way to run a program; its baseline is another. A line that asks `on.bug("name")` is where that mistake is; a comment
`# at name` marks another line where it shows, and `on.guilty` the module whose weight is wrong.
"""
