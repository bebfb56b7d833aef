"""The embedded log: replayable streams in files on this machine's disk.

One process owns the folder. ``host`` serves it to peers: ``hosted`` appends what producers send,
``feed`` sends readers the frames that they ask for, ``sinks`` publishes batches. ``store`` opens
the files of ``log.partition``; ``writer`` is the thread that commits to them.

It may touch ``net.ingress``, ``net.wire``, ``stages``, ``offsets``, ``events``, ``config``,
``failpoints``, ``logger`` and ``errors``, and the world: SQLite files, threads, clocks and trio.
``split`` is pure.

Begin with ``host`` to follow a frame.
"""
