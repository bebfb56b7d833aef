"""One connection between two peers: an nng socket, awaited through trio.

``network`` makes connections, and has their contract; ``pair_socket`` is the one over TCP, and
the only user of pynng in the product. Beside them are small parts for both directions: ``linger``
says when to send, ``probe`` whether a node answers, ``log_throttle`` how often a peer may cause a
log line.

It may touch ``net.wire``, ``errors`` and ``threads``, and the world: sockets, clocks and trio.
``linger``, ``log_throttle``, ``number_ranges`` and ``peer_answers`` are pure.

Begin with ``pair_socket``: it says how a connection begins and ends.
"""
