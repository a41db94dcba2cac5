"""The float64 evaluation of one recorded step: every op once, in execution order, on what the ones before made.

In: a recorded step and the contents of its sources. Out: a number for each value (`signatures`), and which calls could
not be evaluated.
"""
