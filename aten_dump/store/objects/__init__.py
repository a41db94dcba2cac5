"""Object storage: dumps that lie in S3, Google Cloud Storage or Azure.

In: URLs, and files of a local spool.
Out: their listings as paths, ranged reads through a cache, uploads by a thread. Needs the extra ``remote``.
"""
