"""The sending side: events wait, are numbered and sent, and stay until they are acknowledged.

``outbox`` is a producer's side of one stream, with a ``lane`` for each partition; ``routes`` says
where lanes lead. ``release`` and ``with_commit`` say when events may leave, and ``settlements``
what their verdict brings about. ``link`` is one connection; ``emitter`` has the links to one
cluster. ``spill`` holds overflow.

It may touch ``net.transport``, ``net.wire``, ``stages``, ``state`` (rows only), ``events``,
``logger`` and ``errors``. ``emitter`` and ``link`` use trio and clocks; all other modules are
pure.

Begin with ``outbox``: it decides what is sent and resent. Then read ``link``.
"""
