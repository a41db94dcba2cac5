"""What fused ops compute, after their documentation, in the dtype that they are given: for the CPU.

In: arguments as an op takes them; what is not written here raises NotImplementedError.
Out: what the op returns. `npu.py`, `fsdp.py` and `torch_ops.py` have the tables; `fused_op.py` says what one is.
"""
