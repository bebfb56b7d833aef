"""One container: its tasks, the loop that runs them, their inputs, outputs and commits.

An event goes sockets -> ``net.ingress`` -> ``stages`` -> ``runtime.task`` -> ``runtime.outputs`` ->
``net.egress``; ``runtime.commit`` saves what is done. ``runtime.inputs`` decodes the events of the
stages, or reads events from a system. ``runtime.loop`` calls the task.

A *turn* is one iteration of the loop. A *step* is one operation of one task: events, a commit, a
window or a timer. A *slice* is the part of a batch that one step takes.

It may touch every room below it, and trio. Only here does the code of authors (``app``) meet
sockets and disks. ``runtime.container`` makes all parts.

Begin with ``runtime.task``: it decides what happens, and is pure. Then read ``runtime.loop``.
"""
