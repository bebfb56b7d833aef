"""The wire format: envelopes of frames, and events as bytes.

``frame`` reads and writes envelopes and the headers of frames. ``encoder`` and ``decoder`` do that
for the events of a data frame, with one call for a whole batch.

It may touch ``events`` and ``errors``. Every module is pure.

Begin with ``frame``, and ``docs/wire-protocol.md`` beside it.
"""
