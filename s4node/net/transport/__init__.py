"""One connection between two peers: an nng socket, awaited through trio.

``pair_socket`` is the connection; pynng is used there and nowhere else in the product. Beside it
are small parts that both directions need: ``linger`` says when to send, ``probe`` whether a node is
there, ``log_throttle`` how often a peer may cause a line of log.

It may touch ``net.wire`` and ``errors``, and the world: sockets, clocks and trio. ``linger``,
``log_throttle``, ``number_ranges`` and ``peer_answers`` are pure.

Begin with ``pair_socket``: it says how a connection begins and ends.
"""
