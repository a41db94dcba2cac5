"""Where NaN and Inf came from: who made them, who passed them on, and why.

In: one recorded rank.
Out: explained calls in order.
"""
