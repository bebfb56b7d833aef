"""The destinations of events that tasks put on streams.

``dispatch`` finds the partitions of events on the app's own streams. ``outputs`` has the
``channels`` on which events leave a container: to other members, and by an ``output_carrier`` to
other apps. ``task_channels`` are those of a task that keeps state; with ``outlets`` it also
writes to systems. ``subscribers`` are programs that read.

It may touch ``runtime.loop``, ``runtime.task``, ``cluster.coordination``, ``net``, ``state``,
``offsets``, ``systems``, ``stages``, ``app``, ``events``, ``config``, ``failpoints``, ``logger``
and ``errors``, and the world: clocks and trio; sockets only through ``net.egress``. ``dispatch``,
``outlet`` and ``outlet_rows`` are pure.

Begin with ``dispatch``, which is short. Then read ``channels`` and ``outputs``.
"""
