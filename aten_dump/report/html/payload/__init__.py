"""What the page is given: sections of columns, one kind a file, made of the reader's records.

In: step-ranks of a dump, and what `compare` returned.
Out: bytes that the page's `data/` modules read; nothing here knows of HTML.
"""
