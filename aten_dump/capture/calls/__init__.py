"""Calls as records: Python-level calls and modules, aten ops, and what ops wrote.

In: begins and ends of calls, from `intercept/` and `autograd/`.
Out: Call records, emitted to the step's sink.
"""
