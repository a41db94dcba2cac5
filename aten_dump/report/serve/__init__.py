"""The report over a local server, for dumps too large for one file and for what needs the bytes of tensors.

In: a dump, perhaps one that is still being written, or a comparison.
Out: the page of `html/`, its sections when they are asked for, slices of tensors; only on 127.0.0.1, only with a token.
"""
