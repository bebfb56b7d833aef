"""Commits of tasks, rollback to the last commit, and dead letters.

``committer`` writes a task's state, offsets and outgoing frames together. ``producers`` is what a
commit takes of those that send to a durable stream. ``recovery`` rolls a task back after a failure;
``dead_letter_queue`` keeps what cannot be processed.

It may touch ``runtime.outputs``, ``runtime.task``, ``runtime.task.poison``, ``net.ingress``,
``net.wire``, ``state``, ``offsets``, ``app``, ``events``, ``config``, ``failpoints``, ``logger``
and ``errors``, and the world: databases, threads and trio. ``producers`` is pure.

Begin with ``committer``: it has a commit from its beginning to its end.
"""
