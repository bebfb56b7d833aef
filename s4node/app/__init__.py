"""The declarations of authors (apps, streams, PEs, tasks), and the instances of their PEs.

A handler puts events on a stream. An app does not know its process: parameters, clock and nursery
are given to it. The room ``plan`` compiles an app into the loops that bring events to its handlers.

It may touch ``events``, ``store_spec``, ``metrics`` and ``errors``. Every module is pure, except
the default clock of an app. No room that uses sockets or disks is imported; only the container
combines both.

Begin with ``app``: it has the order of an app's life. Read ``processing_element`` and ``stream``
next, then the room ``plan``.
"""
