"""The data of values: whether one is stored, its bytes and hash, and statistics (`statistics/`).

In: tensors with their values' ids.
Out: blobs in the sink's arena, Data records.
"""
