"""One partition of the log: its file, the offsets that it gives to frames, and what it retains.

``partition_file`` is the writer's side of a file and ``partition_view`` the readers' side, with the
rows of ``partition_rows`` in the database of ``partition_database``. ``ledger`` assigns offsets,
``retention`` decides what is deleted; both are pure.

It may touch ``net.wire``, ``offsets``, ``events``, ``sqlite``, ``disk``, ``failpoints``, ``clocks``
and ``errors``, and the world: SQLite files.

Begin with ``ledger`` to learn how offsets are assigned.
"""
