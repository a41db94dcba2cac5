"""Ends are the purpose of a step: losses, gradients by name, what it leaves in memory, the outputs of an inference.

In: an evaluated step. Out: its ends with their numbers, and those that the other side lacks.
"""
