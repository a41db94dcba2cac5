"""What a comparison finds: rows, findings, floors, the user's rules, and the answer in words.

In: what is said of pairs of values.
Out: plain values that travel between processes, and text.
"""
