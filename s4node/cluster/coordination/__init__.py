"""Coordination: the tree of entries, the members of an app, and the owners of partitions.

``contract`` says what a coordination promises; ``folder``, ``tree`` and ``session_file`` implement
it on one machine. ``registry`` knows the paths in the tree. ``membership`` makes a container a
member; ``assignment`` decides which member owns which partition.

It may touch ``events``, ``config``, ``logger`` and ``errors``, and the world: a folder on this
machine, SQLite, file locks, clocks and trio. ``contract``, ``assignment`` and ``view`` are pure.

Begin with ``contract``: ZooKeeper could implement every sentence of it. Then read ``registry``.
"""
