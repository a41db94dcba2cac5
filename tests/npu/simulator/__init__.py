"""A stand-in for an Ascend device, under the real torch_npu; README.md says how it works."""
