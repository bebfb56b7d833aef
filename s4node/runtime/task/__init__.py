"""The task of a partition: what it does next, and what runs its events.

``task`` takes one step at a time; ``gate`` says which, and of how many events, ``chooser`` from
which input. ``processor`` runs the events: with the PEs of an app (``pe_processor``), or with the
user's task (``stream_task_processor``). ``runtime`` says what turn, step and slice mean.

It may touch ``runtime.task.poison``, ``stages``, ``offsets``, ``state``, ``net.ingress``, ``app``,
``store_spec``, ``events``, ``metrics``, ``config`` and ``errors``. Every module is pure: time is an
argument, and callers wait and write.

Begin with ``gate``: its rules say what a task may do next. Then read ``task``.
"""
