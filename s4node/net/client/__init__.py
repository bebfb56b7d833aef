"""The clients of other programs: they send events, and subscriptions read them.

``client`` and its ``client_stream`` are for trio, ``sync_client`` is for everything else.
``subscription`` reads a stream; ``reading`` decides what to request, ``reader_link`` carries
requests and events.

It may touch ``net.egress``, ``net.transport``, ``net.wire``, ``offsets`` (startpoints), ``events``,
``logger`` and ``errors``, and the world: sockets, threads and trio. ``reading`` is pure.

Begin with ``client``: it shows how an outbox and an emitter are used.
"""
