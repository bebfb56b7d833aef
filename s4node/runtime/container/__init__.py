"""The life of a container, from making its parts to closing them.

``container`` makes the parts, starts them and stops them. ``ownership`` starts and ends the tasks
of partitions, ``partitions`` brings events to them, ``frame_router`` gives a peer's frames to the
right part. ``durable_parts`` has the parts for tasks that keep state, and ``fast_parts`` replaces
them if there is none.

It may touch every room below it, and the world: sockets, files, clocks and trio. No room of
``runtime`` imports it. ``announcement`` and ``hooks`` are pure.

Begin with ``container``: its rules give the order of a start and a stop.
"""
