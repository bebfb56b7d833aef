"""The loop that gives tasks their turns, and the stages that it works off.

``run_loop`` says when a task takes its next step, ``step_runner`` how: at once, beside the loop, in
a thread, or event by event. ``pipeline`` makes the stages as configured, and says who waits for
whom.

It may touch ``runtime.task``, ``net.egress`` (the spill), ``stages``, ``app``, ``events``,
``config``, ``logger`` and ``errors``, and the world: threads, clocks, trio, and a file for events
that memory has no room for.

Begin with ``run_loop``: everything that a task does begins in one of its turns.
"""
