"""The report as one HTML file: `payload/` makes the data, `page/` runs in the browser, `document.py` joins them.

In: a dump, or a comparison.
Out: a file that needs no network, in which every text of the dump is data and never markup.
"""
