"""Poison events: they make a handler fail, or kill the process.

``poison_events`` has the events that a task skips, ``failed_hooks`` the calls of windows and timers
that it leaves out. ``isolation`` is what a task knows of both, and of careful mode. ``dead_letter``
makes the record of a skipped event.

It may touch ``net.ingress``, ``offsets``, ``events`` and ``errors``. All modules are pure.

Begin with ``poison_events``: the others find what it holds.
"""
