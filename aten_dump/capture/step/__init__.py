"""What one step knows while it runs: open calls and threads, collectives in flight, random states, own time.

In: ids and events of calls.
Out: state that `calls/` and `autograd/` read and change.
"""
