"""Standbys: a member follows the shipped state of a task that another one owns.

``follower`` keeps a database beside the folders of the task's epochs; ``position`` decides which
entries of the log lead on from where it is. They never claim a task, and write nothing where state
is shipped. ``runtime.container.standbys`` runs them.

It may touch ``state``, ``failpoints``, ``logger`` and ``errors``, and the world: RocksDB, files and
URLs. Calls block: make them from threads. ``position`` is pure.

Begin with ``position``.
"""
