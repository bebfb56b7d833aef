"""The embedded log: streams on this machine's disk, which can be read again.

One process has the folder. ``host`` serves it behind a listener: ``hosted`` takes what producers
append, ``feed`` sends readers what they ask for. ``store`` has the files, ``writer`` is the thread
that commits to them.

It may touch ``net.ingress``, ``net.wire``, ``stages``, ``offsets``, ``events``, ``config``,
``failpoints``, ``logger`` and ``errors``, and the world: SQLite files, threads, clocks and trio.
``ledger``, ``retention`` and ``split`` are pure: they decide.

Begin with ``host`` to follow a frame; begin with ``ledger`` to know which offset it gets.
"""
