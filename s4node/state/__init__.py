"""State: the key-value stores and PE instances of a task, in a database of its own.

``task_state`` is all of one task. ``rows`` has what changed since the last commit, ``database``
writes it to RocksDB. ``epochs`` says whose database is true; the modules named ``remote`` keep a
copy at a URL.

It may touch ``offsets``, ``events``, ``store_spec``, ``config``, ``failpoints``, ``logger`` and
``errors``, and the world: RocksDB, files, URLs (fsspec) and clocks. Calls block, so others make
them from threads. ``key_encoding``, ``remote_manifest`` and ``rows`` are pure.

Begin with ``task_state``: it says what a commit is. Then read ``rows`` and ``database``.
"""
