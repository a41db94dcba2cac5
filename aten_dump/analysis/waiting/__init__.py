"""Who waits for whom: collectives and messages that are open, and what became of the ranks that do not come.

In: the records of steps, also of a run that still writes them, signs of life of its ranks, and traces of torch's.
Out: what ranks ask for differently, in what they wait, and the ranks on which it depends.
"""
