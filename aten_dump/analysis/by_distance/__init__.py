"""Compare two recordings by how far their numbers are apart: where no evaluation is possible, or the user rules.

`walk.py` goes through the pairs of calls, `ends.py` compares what a step is for, `sources.py` judges what comes from
outside; `result_judge.py` and `estimates.py` say how far apart two results may be.
"""
