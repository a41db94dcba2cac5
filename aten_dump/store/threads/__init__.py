"""Threads of the recorder's own: for whose end nobody waits for ever, woken so that Ctrl-C leaves nothing locked.

In: what a thread is to do.
Out: the thread, and what wakes it.
"""
