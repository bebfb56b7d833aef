"""Who runs what, and where: the nodes of a cluster, and what they know of each other.

``coordination`` holds what nodes share: the tree of entries, the members of an app, the assignment
of partitions. ``node`` holds one node: its container processes, its packages, its admin socket.

It may touch ``net``, ``events``, ``config``, ``logger`` and ``errors``, and the world: processes,
sockets, files, clocks and trio. It knows no app and no task: it starts processes, and other rooms
run in them.

Begin with ``coordination.contract``: everything else of a cluster is built on it.
"""
