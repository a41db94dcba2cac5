"""Tensors and arguments become values and trees: one id per (storage, version, geometry).

In: the arguments and results of calls.
Out: Value and Storage records, trees of ids and literals.
"""
