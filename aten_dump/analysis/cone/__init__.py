"""The cone: the calls behind the ends that differ, back to where both sides are the same.

In: two evaluated steps and the ends that differ. Out: the calls between the cut and the ends.
"""
