"""Facts that make a difference understandable: an exact ratio, a hyperparameter behind a number, a module's mode.

In: two calls or values that are counterparts, or their step-ranks.
Out: sentences, if there is something to say. Nothing here decides whether two recordings agree.
"""
