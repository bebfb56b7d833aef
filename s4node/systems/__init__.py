"""Systems: where inputs are read from and outputs are written to, found by name.

The contract is ``offsets.system``. ``memory`` implements it for tests, ``embedded_log`` over the
sockets of a node with a log. ``live`` stands for sockets, which cannot be read again. ``kafka`` is
made of ``kafka_reader``, ``kafka_writer``, which has one transaction for each commit, and
``kafka_transactions``, which says what holds one up. ``records`` and ``record_writer`` read and
write the records of other programs; ``memory_receiver`` takes output in tests.

It may touch ``net.client``, ``net.transport``, ``net.wire``, ``offsets``, ``events``, ``config``
and ``errors``, and the world: sockets, clocks and trio.

Begin with ``memory``: it is the smallest system that fulfils the whole contract.
"""
