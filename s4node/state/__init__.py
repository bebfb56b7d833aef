"""State: the key-value stores and PE instances of a task, in a database of its own.

``task_state`` is the state of one task. ``rows`` collects the changes since the last commit, and
``database`` writes them to RocksDB. ``epochs`` finds the current database of a task; the modules
named ``remote`` copy it to a URL.

It may touch ``offsets``, ``events``, ``store_spec``, ``config``, ``failpoints``, ``logger`` and
``errors``, and the world: RocksDB, files, URLs (fsspec) and clocks. Calls block: make them from
threads. ``key_encoding``, ``remote_log`` and ``rows`` are pure.

Begin with ``task_state``: it says what a commit is. Then read ``rows`` and ``database``.
"""
