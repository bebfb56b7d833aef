"""``s4 tail``: what an app puts on a stream, one JSON object a line.

Rules
- From now on, until Ctrl-C, ``--count`` events, or the reader of our output going away.
- What was missed for reading too slowly is said on standard error.
"""

from __future__ import annotations

import sys

import msgspec
import trio

from s4node.comm.client import Client
from s4node.comm.subscription import Subscription
from s4node.ops.serve import exit_status


def tail(stream: str, address: str, count: int, timeout: float) -> int:
    """Print the stream's events; returns the exit status."""
    try:
        return trio.run(_tail, stream, address, count, timeout)
    except BaseException as error:
        return exit_status(error)


async def _tail(stream: str, address: str, count: int, timeout: float) -> int:
    async with Client(address, timeout=timeout) as client, client.subscribe(stream) as events:
        if sys.stderr.isatty():
            print(f"reading {stream} from {address}; Ctrl-C ends", file=sys.stderr)
        await print_events(events, count)
    return 0


async def print_events(events: Subscription, count: int, *, with_place: bool = False) -> None:
    """Print events, each as it comes; ends after ``count`` of them, if that is not 0.

    With their places, each line is an object of ``partition``, ``offset`` and ``event``.
    """
    encoder = msgspec.json.Encoder(enc_hook=_words)
    told = 0
    read = 0
    async for event in events:
        shown = dict(event.attributes)  # no classes were named, so it is a GenericEvent
        if with_place:
            shown = {**events.place._asdict(), "event": shown}
        print(encoder.encode(shown).decode(), flush=True)
        read += 1
        if events.missed > told:
            print(f"{events.missed - told} events missed: reading is too slow", file=sys.stderr)
            told = events.missed
        if read == count:
            break


def _words(value: object) -> str:
    """A value that JSON cannot hold, in words."""
    return str(value)
