"""Programs outside: clients that send events, and subscriptions that read them.

``client`` is for trio, ``sync_client`` for everything else. ``subscription`` reads a stream;
``reading`` decides what it asks for, ``reader_link`` carries that over a connection.

It may touch ``net.egress``, ``net.transport``, ``net.wire``, ``offsets`` (startpoints), ``events``,
``logger`` and ``errors``, and the world: sockets, threads and trio. ``reading`` is pure.

Begin with ``client``: it shows how an outbox and an emitter are used.
"""
