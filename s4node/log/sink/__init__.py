"""Sinks: writers whose batches become visible whole, or not at all.

The attempts of a batch are staged in a stream of the sink's own, its spool. ``decision`` decides
which of them count, and numbers their events; ``sink_file`` keeps the decisions. ``log.sinks`` acts
on them.

It may touch ``sqlite``, ``disk`` and ``errors``, and the world: a SQLite file.

Begin with ``decision``.
"""
