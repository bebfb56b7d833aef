"""What nodes share: the tree of entries, the members of an app, and who owns which partition.

``contract`` says what a coordination promises; ``folder``, ``tree`` and ``session_file`` keep that
promise on one machine. ``registry`` knows where in the tree things are. ``membership`` makes a
container a member; ``assignment`` decides who owns which partition.

It may touch ``events``, ``config``, ``logger`` and ``errors``, and the world: a folder on this
machine, SQLite, file locks, clocks and trio. ``contract``, ``assignment`` and ``view`` are pure.

Begin with ``contract``: ZooKeeper could implement every sentence of it. Then read ``registry``.
"""
