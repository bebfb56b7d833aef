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
from s4node.event import GenericEvent
from s4node.ops.serve import exit_status


def tail(stream: str, address: str, count: int, timeout: float) -> int:
    """Print the stream's events; returns the exit status."""
    try:
        return trio.run(_tail, stream, address, count, timeout)
    except BaseException as error:
        return exit_status(error)


async def _tail(stream: str, address: str, count: int, timeout: float) -> int:
    encoder = msgspec.json.Encoder(enc_hook=_words)
    async with Client(address, timeout=timeout) as client, client.subscribe(stream) as events:
        if sys.stderr.isatty():
            print(f"reading {stream} from {address}; Ctrl-C ends", file=sys.stderr)
        told = 0
        read = 0
        async for event in events:
            attributes = event.attributes if isinstance(event, GenericEvent) else event
            print(encoder.encode(dict(attributes)).decode(), flush=True)
            read += 1
            if events.missed > told:
                print(f"{events.missed - told} events missed: reading is too slow",
                      file=sys.stderr)  # fmt: skip
                told = events.missed
            if read == count:
                break
    return 0


def _words(value: object) -> str:
    """A value that JSON cannot hold, in words."""
    return str(value)
