"""Ends: what a step is for. Losses, gradients by name, what it leaves in memory, the outputs of an inference.

In: an evaluated step. Out: its ends with their numbers, and those that the other side does not have.
"""
