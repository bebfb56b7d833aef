"""Savepoints: named, consistent states of a whole job.

``place`` has the operations, which ``folders`` implements for a folder and ``shipped`` for a URL.
``deploy.savepoint`` takes one of a running job. ``writer`` makes a savepoint of given databases.
``offsets.cuts`` explains how tasks make cuts that fit each other.

It may touch ``state``, ``offsets``, ``config``, ``failpoints``, ``logger`` and ``errors``, and the
world: files. Calls block, so callers make them in threads.

Begin with ``place``.
"""
