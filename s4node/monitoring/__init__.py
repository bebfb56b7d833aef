"""The texts about a node: the metrics that it exposes, and the reasons that hold an app up.

``exposition`` writes metrics as Prometheus reads them, and keeps counters from falling. ``why`` has
the rules of ``s4 why``. All of it is pure.

It may touch ``deploy.cluster_snapshot``, ``cluster.node.container_status`` and ``metrics``.

Begin with ``why``: it has a rule for each way in which an app is held up.
"""
