"""Savepoints: named, consistent states of a whole job.

``place`` says what can be done with them, ``folders`` and ``shipped`` where they are. ``writer``
makes one of any databases. How tasks make cuts that fit each other is in ``offsets.cuts``.

It may touch ``state``, ``offsets``, ``config``, ``failpoints``, ``logger`` and ``errors``, and the
world: files. Calls block, so others make them from threads.

Begin with ``place``.
"""
