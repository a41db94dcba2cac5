"""What the fused ops of NPUs compute, after their documentation, in the dtype they are given: for the CPU.

In: arguments as an op takes them; what is not written here raises NotImplementedError.
Out: what the op returns; `fused_references` has the table by name.
"""
