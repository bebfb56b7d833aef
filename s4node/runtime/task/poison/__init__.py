"""Poison events: they make a handler fail, kill the process, or leave unsaveable state.

``poison_events`` has the events that a task skips. ``in_flight_journal`` is the file that tells,
after a kill, what was being processed; ``suspects`` finds the event that caused the deaths.
``unsaveable_search`` finds the event after which state cannot be saved. ``dead_letter`` makes the
record of a skipped event.

It may touch ``net.ingress``, ``events`` and ``errors``. ``in_flight_journal`` writes a mapped file;
all other modules are pure.

Begin with ``poison_events``: the others find what it holds.
"""
