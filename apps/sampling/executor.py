"""Sample: the fuller the stage, the smaller the fraction of arriving events that it admits.

A shedding stage admits all until it is full, then nothing until there is room: whole seconds are
there and others are missing. A sample keeps something of everything. Producers never wait, and
learn what was dropped, as with every executor that drops.
"""

from s4node import Executor


class Sample(Executor):
    """Admits everything while the stage is less than half full, then less and less."""

    reason = "not in the sample: the stage is filling up"

    def admits(self, load, events, size, now):  # type: ignore[no-untyped-def]
        """The fraction of ``events`` that is free of the stage's second half."""
        free = 1 - max(load.depth / load.capacity, load.bytes / load.max_bytes)
        part = events if free > 0.5 else int(events * 2 * max(0.0, free))
        return min(part, max(0, load.capacity - load.depth))
