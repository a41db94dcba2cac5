"""Facts that make a difference understandable: an exact ratio, a hyperparameter behind a number, a module's mode.

In: two calls or values that are counterparts, or the step-ranks that they are in.
Out: sentences, or nothing where there is nothing to say. Nothing here decides whether two recordings agree.
"""
