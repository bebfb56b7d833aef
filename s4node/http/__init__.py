"""HTTP of a node, and of ``s4 run``: monitoring, the page, and events and state for programs.

``messages`` reads requests and writes answers, ``routes`` has all paths, ``browsers`` decides which
pages of browsers may ask. ``server`` takes connections. ``monitor`` answers what is asked about the
node and its cluster, ``site`` makes the server of a process. The files of the page are in ``page``.

It may touch ``monitoring``, ``deploy``, ``cluster``, ``net``, ``metrics``, ``config``, ``logger``
and ``errors``, and the world: sockets, files, threads and trio. ``messages``, ``routes`` and
``browsers`` are pure.

Begin with ``routes``: it has every path, and who may ask for it.
"""
