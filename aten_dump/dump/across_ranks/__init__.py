"""How a tensor lies over the ranks of a step.

In: what a rank recorded.
Out: grids of parts, placements of DTensors, and which value holds the bytes of one.
"""
