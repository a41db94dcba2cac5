"""Precision: how far what was recorded is from its meaning, and at which call that distance arises.

In: two evaluated steps that are the same function. Out: the call at which one side loses precision.
"""
