"""One connection between two peers: a socket at each end, awaited through trio.

``network`` makes connections, and has their contract. Over TCP, who dials has a ``pair_socket``,
the only user of pynng in the product. A node has an ``accepted_socket``, which splits the bytes of
any peer as ``sp_messages`` says. Beside them are small parts for both directions: ``linger`` says
when to send, ``probe`` whether a node answers.

It may touch ``net.wire``, ``errors`` and ``threads``, and the world: sockets, clocks and trio.
``linger``, ``number_ranges`` and ``sp_messages`` are pure.

Begin with ``accepted_socket``: it says how a connection begins and ends.
"""
