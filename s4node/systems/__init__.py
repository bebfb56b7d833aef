"""Systems: where inputs are read from and outputs are written to, found by name.

The contract is ``offsets.system``. ``memory`` implements it for tests, ``embedded_log`` over the
sockets of a node with a log. ``live`` stands for sockets, which cannot be read again.

It may touch ``net.client``, ``net.transport``, ``net.wire``, ``offsets``, ``events``, ``config``
and ``errors``, and the world: sockets, clocks and trio.

Begin with ``memory``: it is the smallest system that fulfils the whole contract.
"""
