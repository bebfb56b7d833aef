"""The destinations of events that tasks put on streams.

``dispatch`` finds the partitions of events on the app's own streams. ``exchange`` carries events on
the ``channels`` between tasks that keep state, ``members`` between containers of an app that keeps
none. ``output_streams`` leads to other apps, ``subscribers`` to programs that read.

It may touch ``runtime.loop``, ``runtime.task``, ``cluster.coordination``, ``net``, ``state``,
``offsets``, ``stages``, ``app``, ``events``, ``config``, ``failpoints``, ``logger`` and ``errors``,
and the world: clocks and trio; sockets only through ``net.egress``. ``dispatch`` is pure.

Begin with ``dispatch``, which is short. Then read ``exchange`` for tasks that keep state.
"""
