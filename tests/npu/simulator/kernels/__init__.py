"""Kernels of the simulated device that are written in Python, and how all of them are chosen."""
