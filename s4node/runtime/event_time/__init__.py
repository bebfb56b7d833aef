"""Event time in a task: up to which time the events of its streams have come, and what that ends.

``task_times`` has the watermarks of a task's streams, and of what it puts; ``sources`` is what
their inputs report. ``alignment`` says which inputs run ahead of others, ``held_streams`` which
watermarks do not rise. ``saved_times`` has what a commit keeps of them; ``window_state`` saves and
restores the instances of windows.

It may touch ``app``, ``offsets``, ``events`` and ``errors``. Every module is pure.

Begin with ``task_times``.
"""
