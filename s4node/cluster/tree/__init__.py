"""The tree of small entries that nodes share, and the sessions through which they write it.

``contract`` says what a coordination promises. ``folder``, ``tree_database`` and ``session_file``
implement it on one machine, ``zookeeper`` and ``kazoo_client`` on many; ``session_life`` is common
to both. ``coordinations`` chooses.

It may touch ``config``, ``logger`` and ``errors``, and the world: a folder on this machine, SQLite,
file locks, ZooKeeper, clocks and trio. ``contract`` is pure.

Begin with ``contract``.
"""
