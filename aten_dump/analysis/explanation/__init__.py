"""The explanation: what the cut, the cones and the kernels say, as rows and findings.

In: two evaluated steps. Out: `RankEvidence`.
"""
