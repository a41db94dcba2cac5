"""Walks two paired recordings and judges each pair: floors, rules, evidence, the answer.

In: pairs of calls.
Out: findings and rows as plain values, and the answer in words.
"""
