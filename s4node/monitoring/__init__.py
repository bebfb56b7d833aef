"""Monitoring of a node over HTTP: is it alive, is it ready, what it counts, and its cluster.

``http_server`` takes connections and answers GET requests. ``monitor`` has the paths, and asks the
node. ``exposition`` writes metrics as Prometheus reads them; ``totals`` keeps counters from
falling. ``why`` has the rules of ``s4 why``.

It may touch ``deploy``, ``cluster``, ``net``, ``metrics``, ``config``, ``logger`` and ``errors``,
and the world: sockets, threads and trio. ``exposition``, ``totals`` and ``why`` are
pure.

Begin with ``monitor``: it has every path.
"""
