"""Everything that goes over sockets, in the order of its rooms.

``wire`` is the format of frames. ``transport`` is one connection. ``egress`` sends: it numbers
events, keeps them and sends them again. ``ingress`` receives: it admits, and acknowledges.
``client`` is for programs outside.

It may touch ``state`` (rows only), ``offsets``, ``stages``, ``events``, ``config``, ``logger`` and
``errors``, and the world: sockets, clocks and trio. It knows no app and no task.

Begin with ``wire.frame``, and ``docs/wire-protocol.md`` beside it: all other rooms speak of its
frames.
"""
