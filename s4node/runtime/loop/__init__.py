"""The loop that gives tasks their turns, and the stages that it empties.

``run_loop`` says when a task takes its next step. ``step_runner`` runs it at once, beside the loop,
in a thread, or event by event. ``stage_configs`` has the settings of stages and checks them;
``pipeline`` makes the stages, and ``backpressure`` says which streams wait for which.

It may touch ``runtime.task``, ``net.egress`` (the spill), ``stages``, ``app``, ``events``,
``config``, ``logger`` and ``errors``, and the world: threads, clocks, trio, and a file for events
that memory has no room for.

Begin with ``run_loop``: everything that a task does begins in one of its turns.
"""
