"""The float64 evaluation of one recorded step: every op once, in execution order, on the results of earlier ops.

In: a recorded step and the contents of its sources. Out: a number for each value (`signatures`), and the calls that
could not be evaluated.
"""
