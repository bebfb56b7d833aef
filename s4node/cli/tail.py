"""``s4 tail``: prints the events of an app's stream, one JSON object per line.

Rules
- It starts at the present, and ends at Ctrl-C, after ``--count`` events, or when its output is
  closed.
- A message on standard error says when reading has begun: every event put from then on is printed.
- Messages also report events that were missed, because reading is too slow or they could not be
  sent, and each lost connection, with the events until it is back.
"""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import trio

from s4node.cli import arguments as kinds
from s4node.cli.arguments import cluster_option, folder_option, timeout_option, to_option, utf8
from s4node.cli.output import connecting, counted, report
from s4node.cli.running_apps import Nodes, Reach
from s4node.net.client.client import Client
from s4node.net.client.subscription import Place, Subscription
from s4node.process import stdio


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "stream", type=utf8, metavar="STREAM", help="an output or internal stream of the app"
    )
    to_option(parser, "where the app listens", "that of your running app which has the stream")
    cluster_option(parser, "all that run here")
    folder_option(parser, "none: apps that run here")
    parser.add_argument(
        "--count", type=kinds.count, default=0, metavar="N", help="end after N events"
    )
    timeout_option(parser, "connecting")
    parser.set_defaults(function=tail)


def tail(stream: str, to: Nodes, count: int, timeout: float) -> int:
    return trio.run(_tail, stream, to.to_read(stream), count, timeout)


async def _tail(stream: str, reach: Reach, count: int, timeout: float) -> int:
    async with (
        connecting(reach.addresses, timeout) as connected,
        Client(reach.addresses, timeout=timeout, credentials=reach.credentials) as client,
        client.subscribe(stream) as events,
    ):
        connected()
        report(f"reading {stream} from {', '.join(reach.addresses)}; Ctrl-C ends")
        events.on_news = _Gaps(events).look
        await print_events(placed(events), count)
    return 0


class _Gaps:
    """Reports missed events, and lost and restored connections, of a subscription."""

    def __init__(self, events: Subscription) -> None:
        self._events = events
        self._lost = events.interruptions
        self._opened = self._openings
        self._away = False
        self._missed = 0

    @property
    def _openings(self) -> int:
        """How often a connection was made: those that exist, and those that were lost."""
        return self._events.interruptions + self._events.connections

    def look(self) -> None:
        stream, lost, opened = self._events.stream, self._events.interruptions, self._openings
        missed = self._events.missed - self._missed
        if missed > 0:
            self._missed += missed
            report(
                f"{stream}: {counted(missed, 'event')} missed: reading is too "
                f"slow, or the app's node could not send them (see its log)"
            )
        if lost > self._lost:
            self._lost, self._away = lost, True
            report(f"{stream}: connection lost; events are missed until it is back")
        if opened > self._opened:
            self._opened = opened
            if self._away:
                self._away = False
                report(f"{stream}: connected again; reading from now on")


async def placed(events: Subscription) -> AsyncIterator[tuple[Place, Any]]:
    async for event in events:
        yield events.place, event


async def print_events(
    events: AsyncIterator[tuple[Place, Any]], count: int, *, with_place: bool = False
) -> None:
    """Print GenericEvents as they arrive; end after ``count`` events, unless that is 0.

    With ``with_place``, a line is an object of ``partition``, ``offset`` and ``event``.
    """
    encoder = msgspec.json.Encoder(enc_hook=str)
    read = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_with_reader)
        async for place, event in events:
            shown = event.attributes
            if with_place:
                shown = {**place._asdict(), "event": shown}
            print(encoder.encode(shown).decode(), flush=True)
            read += 1
            if read == count:
                break
        nursery.cancel_scope.cancel()


async def _end_with_reader() -> None:
    """Raise when nobody reads our output any more, even if no event arrives.

    Only a pipe reports that: its writing end has an error once its last reader has closed it.
    """
    output = sys.stdout.fileno()
    if stat.S_ISFIFO(os.fstat(output).st_mode):
        await trio.lowlevel.wait_readable(output)
        poll = select.poll()
        poll.register(output, 0)
        if poll.poll(0):  # readable without an error: the pipe is open for reading, too
            raise stdio.unread()
