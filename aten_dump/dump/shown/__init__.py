"""How calls, values and numbers are shown in short: one text for the terminal, the report and a notebook.

In: facts of calls and values, numbers.
Out: short texts, and small pieces of HTML for `_repr_html_`.
"""
