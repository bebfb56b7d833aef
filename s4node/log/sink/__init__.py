"""Sinks: writers whose batches become visible whole, or not at all.

The attempts of a batch are staged in a stream of the sink's own, its spool. ``decision`` decides
which attempts count, and numbers their events; ``sink_file`` stores the decisions; ``log.sinks``
carries them out.

It may touch ``sqlite``, ``disk`` and ``errors``, and the world: a SQLite file.

Begin with ``decision``.
"""
