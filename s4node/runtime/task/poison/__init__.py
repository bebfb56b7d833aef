"""Poison events: events that make a handler fail, kill the process, or leave what cannot be saved.

``poison_events`` has those that a task skips. ``in_flight_journal`` is the file that tells, after a
kill, what was being processed; ``suspects`` finds the event by the deaths. ``unsaveable_search``
finds the one after which state cannot be saved. ``dead_letter`` is how an event is kept.

It may touch ``net.ingress``, ``events`` and ``errors``. ``in_flight_journal`` writes a mapped file;
all other modules are pure.

Begin with ``poison_events``: the others find what it holds.
"""
