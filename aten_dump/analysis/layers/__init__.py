"""The layers of a compiler: which of them made compiled code another function than the program.

In: the stages of the graphs that a step was the first to run, and what their calls were given and returned.
Out: `LayerFault`s: a decomposition, a pass, a kernel, or the runtime.
"""
