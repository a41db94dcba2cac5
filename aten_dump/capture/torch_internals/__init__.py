"""All that leans on private parts of torch: quiet dispatch, tracing, node hooks, saved tensors, formulas.

In: nothing of ours.
Out: what the other rooms need of torch, by names that say what it is.
"""
