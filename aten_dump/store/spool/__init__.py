"""The local folder in which a run that records to object storage keeps what is not uploaded yet.

In: finished files of a rank, and the URL that they go to.
Out: uploads by a thread; after a kill, the two parts joined again.
"""
