"""Compare two recordings by how far their numbers are apart: where no evaluation is possible, or the user rules.

`walk.py` goes through the pairs of calls, `result_judge.py` says how far apart two results may be, `sources.py` judges
what comes from outside, and `rank_evidence.py` compares what a step is for and puts it all together.
"""
