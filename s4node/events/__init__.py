"""Events, their types on the wire, their keys, and the partitions of keys.

Events travel in batches. ``schema`` encodes and decodes a whole batch in one call, ``routing``
finds the partitions of a whole batch in one compiled loop.

It may touch ``errors`` only. Every module is pure.

Begin with ``event``: ``Event`` and ``EventBatch`` are used in every other room.
"""
