"""What several targets need of values and lines: arrays, files, statistics, source lines.

In: values of a dump. Out: the same in forms that other tools know.
"""
