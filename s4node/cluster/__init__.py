"""The cluster: its nodes, the processes that they run, and what they share.

``coordination`` holds what nodes share: the tree of entries, the members of an app, the assignment
of partitions. ``node`` holds one node: its container processes, its packages, its own address.

It may touch ``net``, ``events``, ``config``, ``logger`` and ``errors``, and the world: processes,
sockets, files, clocks and trio. It knows neither apps nor tasks: it starts processes, and other
rooms run in them.

Begin with ``tree.contract``, which everything else in a cluster builds on.
"""
