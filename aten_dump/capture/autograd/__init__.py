"""Ties autograd's nodes, and so every op of a backward pass, to the forward calls that made them.

In: outputs of calls, nodes that run, gradients.
Out: node and backward calls, links, saved tensors.
"""
