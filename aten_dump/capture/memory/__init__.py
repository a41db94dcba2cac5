"""Which memory a tensor stands on: storages and their versions, bytes written, geometry.

In: tensors and what ops write.
Out: the state of each storage.
"""
