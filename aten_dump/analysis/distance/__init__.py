"""How far two values are apart: metrics over chunks of elements, else statistics, else hashes.

In: two values.
Out: numbers.
"""
