"""The data of values: what is wanted, what is stored, hashes, and statistics (`statistics/`); now, in batches or later.

In: tensors with their values' ids.
Out: blobs in the sink's arena; Data, Statistics, Hash and Same records.
"""
