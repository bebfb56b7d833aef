"""Processes: each runs a container, a node, or several nodes.

``serve`` runs a container for ``s4 run``, ``container_process`` for a node's supervisor. ``launch``
runs nodes for ``s4 run --nodes``. ``container_entry`` lets commands find a container. ``stdio`` and
``log_setup`` prepare the standard streams and the logs. ``loading`` is about Ctrl-C before that,
``stopping`` about the end.

It may touch ``runtime.container``, ``deploy``, ``cluster``, ``log``, ``app``, ``config``,
``logger`` and ``errors``, and the world: signals, standard streams, sockets, threads and trio.

Begin with ``serve``: signals, logs and the exit status are the same for all of them.
"""
