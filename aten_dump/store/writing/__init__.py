"""Writes a rank's steps: the writer's thread, arena, index and shards as they grow.

In: records and bytes through the `Sink` protocol.
Out: index and shard files.
"""
