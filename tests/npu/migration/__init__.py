"""The story of one who moves training from the CPU to an NPU: three models, and ten faults of kernels to be named."""
