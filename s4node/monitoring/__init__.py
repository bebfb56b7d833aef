"""Monitoring of a node over HTTP: is it alive, is it ready, what it counts, and its cluster.

``http_server`` takes connections and answers GET requests. ``monitor`` has the paths, and asks the
node. ``exposition`` writes metrics as Prometheus reads them; ``totals`` keeps counters from
falling.

It may touch ``deploy``, ``cluster``, ``net``, ``metrics``, ``config``, ``logger`` and ``errors``,
and the world: sockets, threads and trio. ``exposition`` and ``totals`` are pure.

Begin with ``monitor``: it has every path.
"""
