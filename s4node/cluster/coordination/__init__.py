"""Coordination: the members of an app, the owners of its partitions, and requests to nodes.

``registry`` knows the paths in the tree, ``entries`` what is there. ``membership`` makes a
container a member; ``assignment`` decides which member owns which partition. ``node_requests``
carries what commands ask of nodes.

It may touch ``cluster.tree``, ``offsets``, ``events``, ``config``, ``logger`` and ``errors``, and
the world: clocks and trio. ``assignment``, ``entries`` and ``view`` are
pure.

Begin with ``registry``.
"""
