"""What is almost surely wrong in a recorded step, without a baseline: a table of rules.

In: the recorded ranks of a step, and the step before it.
Out: findings, each with its call and the program's line; the rules that could not run, and why.
"""
