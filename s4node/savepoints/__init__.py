"""Savepoints: named, consistent states of a whole job.

``folders`` says where the cuts of the tasks are. How tasks make cuts that fit each other is in
``offsets.cuts``.

It may touch ``state``, ``offsets``, ``config``, ``failpoints``, ``logger`` and ``errors``, and the
world: files. Calls block, so others make them from threads.

Begin with ``folders``.
"""
