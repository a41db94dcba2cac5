"""What shows a trigger NaN, Inf and overflows: extremes of tensors, and the registers of devices that saturate.

In: tensors as they are seen, and that a call has ended.
Out: what is notable of them, once it has come over from their devices.
"""
