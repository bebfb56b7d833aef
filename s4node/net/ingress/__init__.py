"""The receiving side: accepts peers, admits their frames, and acknowledges them.

``listener`` has the sockets. ``admission`` decides by a frame's header whether it may enter, and
what is answered; ``producer_lane`` has the position of one producer, ``settlement`` the
commits that settle it, ``report`` what it was answered, ``flow`` the table of what its frames lead
to, and ``Effects`` what is to be carried out after a turn. A ``roster`` remembers producers without
a lane; ``commit_rows`` is that of commits.

It may touch ``net.transport``, ``net.wire``, ``stages``, ``offsets``, ``events``, ``config``,
``logger`` and ``errors``. Only ``listener`` and ``connection`` use sockets, clocks and trio.

Begin with ``listener`` to see how bytes come in; begin with ``admission`` for the rules.
"""
