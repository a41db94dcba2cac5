"""Recording of unmodified scripts: ``aten-dump run``.

In comes a command and a configuration; out goes its environment, in which each Python process that imports torch
waits for its first call of a module, and records from there. Steps are counted by the optimizer's steps.
"""
