"""The systems that inputs are read from and outputs written to, made by name.

The contract is ``offsets.system``. ``memory`` implements it for tests, ``embedded_log`` over the
sockets of a node that has a log. ``live`` stands for sockets, which cannot be read again.

It may touch ``net.client``, ``net.transport``, ``net.wire``, ``offsets``, ``events``, ``config``
and ``errors``, and the world: sockets, clocks and trio.

Begin with ``memory``: it is the smallest system that fulfils the whole contract.
"""
