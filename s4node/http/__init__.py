"""HTTP of a node, and of ``s4 run``: monitoring, the page, and events and state for programs.

``routes`` has all paths, ``messages`` reads requests and writes answers, ``browsers`` decides which
pages of browsers may ask. ``server`` takes connections. ``monitor``, ``sending``, ``reading`` and
``states`` answer; ``site`` makes the server of a process. The files of the page are in ``page``.

It may touch ``monitoring``, ``deploy``, ``cluster``, ``net``, ``state.questions``, ``metrics``,
``config``, ``logger`` and ``errors``, and the world: sockets, files, threads and trio. ``bodies``,
``browsers``, ``messages``, ``openapi`` and ``routes`` are pure.

Begin with ``routes``: it has every path, and who may ask for it.
"""
