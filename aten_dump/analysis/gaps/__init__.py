"""How far one named value of two programs is apart, from which op on, and what makes up the gap.

In: two recorded steps, and the names of a value on both sides.
Out: a `Gap`: parts of it by function, precision and kernels, element by element, and the first op of each.
"""
