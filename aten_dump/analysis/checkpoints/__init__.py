"""Weights of two checkpoints: which tensor of one became which of the other, by contents.

In: what holds weights (safetensors files, state dicts of torch, dumps, mappings of tensors), read a tensor at a time.
Out: `Weight` records: how each tensor is laid out in the other side, and what is missing, extra or altered.
"""
