"""Statistics of a tensor's elements: of one tensor, of many small ones, and on a device.

In: tensors, or arrays of many.
Out: the twelve numbers of `config.STATISTICS`.
"""
