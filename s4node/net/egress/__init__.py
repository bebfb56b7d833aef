"""The sending side: events wait, are numbered and sent, and stay until they are acknowledged.

``outbox`` is a producer's side of one stream, with a ``lane`` for each partition; ``routes`` says
where lanes lead. ``staged_outbox`` and ``transactional_outbox`` are kinds of outbox; ``forwarding``
settles events of producers.
``link`` is one connection; ``emitter`` has the links to one cluster. ``spill`` holds overflow.

It may touch ``net.transport``, ``net.wire``, ``stages``, ``state`` (rows only), ``events``,
``logger`` and ``errors``. ``emitter`` and ``link`` use trio and clocks; all other modules are
pure.

Begin with ``outbox``: it decides what is sent and resent. Then read ``link``.
"""
