"""What is asked of the arguments of an op before it runs, so that none ends the process or fills its memory.

In: an op and its arguments.
Out: nothing, or an error that says which argument is wrong.
"""
