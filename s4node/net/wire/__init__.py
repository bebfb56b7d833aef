"""The wire format: envelopes of frames, and events as bytes.

``frame`` reads and writes envelopes and the headers of frames. ``body`` encodes and decodes the
events of a data frame, a whole batch in one call. ``start`` says where a reader of a log begins.

It may touch ``events``, ``offsets`` and ``errors``. Every module is pure.

Begin with ``frame``, and ``docs/wire-protocol.md`` beside it.
"""
