"""Commits of tasks, rollback to the last commit, and dead letters.

``committer`` writes a task's state, its offsets, the numbers of its producers and outgoing frames
together; ``task_commit`` has what one commit of a task takes and acknowledges, and
``savepoint_requests`` has the tasks make the cuts of a savepoint. ``recovery`` rolls a task back
after a failure; ``dead_letter_queue`` keeps events that cannot be processed, in the
``dead_letter_stream``. ``careful_mode`` has events processed one at a time after deaths.
``retries`` asks a place for state that does not answer again.

It may touch ``runtime.outputs``, ``runtime.task``, ``runtime.task.poison``, ``net.ingress``,
``net.wire``, ``systems``, ``state``, ``offsets``, ``app``, ``events``, ``config``, ``failpoints``,
``logger`` and ``errors``, and the world: databases, threads and trio.

Begin with ``committer``: it shows a whole commit.
"""
