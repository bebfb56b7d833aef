"""The wire format: envelopes of frames, and events as bytes.

``frame`` reads and writes envelopes and the headers of frames. ``body`` encodes and decodes the
events of a data frame, a whole batch in one call.

It may touch ``events`` and ``errors``. Every module is pure.

Begin with ``frame``, and ``docs/wire-protocol.md`` beside it.
"""
