"""How calls are called and which are recorded: API names, op schemas, interned texts, selection.

In: functions, ops, frames.
Out: names, plans of ops, ids of interned texts.
"""
