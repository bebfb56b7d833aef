"""What authors declare: apps, streams, PEs and tasks; and the dispatch plan compiled from them.

A handler puts events on a stream. An app knows no process: its parameters, clock and nursery are
given to it. ``graph`` checks an app and compiles the loop that brings events to its handlers.

It may touch ``events``, ``store_spec``, ``metrics`` and ``errors``. Every module is pure, but for
the default clock of an app. The room imports none that uses sockets or disks; only the container
brings both together.

Begin with ``app``: it has the order of an app's life. Read ``processing_element`` and ``stream``
next, then ``graph``.
"""
