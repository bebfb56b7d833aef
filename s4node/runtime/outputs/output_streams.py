"""The output streams of an app, and the apps that consume them.

Rules
- The configuration names consumers, and the cluster's directory finds them. A consumer that was
  found goes when the directory no longer has it.
- Each consumer has one emitter, for all streams that it consumes.
- A stream that has no consumer, and cannot get one later, is logged once. So is a cycle over apps
  that the cluster's directory shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from s4node.app.app import App
from s4node.app.plan import dataflow
from s4node.app.plan.cycles import describe, over_apps
from s4node.app.stream import OutputStream, Stream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.coordination.entries import StreamUses
from s4node.cluster.coordination.stream_directory import SystemConsumers
from s4node.cluster.coordination.topology import Topology
from s4node.config import settings
from s4node.config.config import Config
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.release import ByExecutor, Mark
from s4node.net.egress.routes import Routes
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.outputs.refusals import Refusals
from s4node.runtime.outputs.remote_sender import RemoteSender

log = get_logger("s4node.runtime")

MAX_FRAME_EVENTS = 2048
"""The most events of a frame that is sent: larger ones cost less per event, and delay other streams
for longer."""


class Owed(NamedTuple):
    """The number of events of an output stream that a consumer has not acknowledged."""

    stream: str
    consumer: str
    events: int


def outbox_options(stream: Stream, config: Config, *, saved: bool = False) -> dict[str, Any]:
    """The options of outboxes for a stream: types, limits of frames, what is checked.

    Its frames are ``saved`` with commits, or sent at once.
    """
    return {
        "types": [kind.cls for kind in stream.types],
        "max_frame_events": MAX_FRAME_EVENTS,
        "max_frame_bytes": config[settings.SENDER_MAX_FRAME_BYTES],
        # a member reads at once what comes on an inner stream, and a check takes 80 ns an event
        "checked": saved or isinstance(stream, OutputStream),
    }


class OutputStreams:
    """A remote sender for each output stream of ``app``.

    ``nudge`` gives the loop a turn, when tasks that were held may go on, or ``pump`` has more to
    say; ``on_news`` is called when a consumer answers. Dropped and refused events are reported to
    ``refusals``.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        pipeline: Pipeline,
        *,
        node: str,
        incarnation: str,
        enrolment: Enrolment | None,
        nudge: Callable[[], None],
        on_news: Callable[[], None],
        refusals: Refusals,
    ) -> None:
        self.senders: dict[str, RemoteSender] = {}
        self._app = app
        self._config = config
        self._pipeline = pipeline
        self._producer = f"{node}-{incarnation}"  # another host's container may have our name
        self._credentials = Credentials.configured(config)
        if self._credentials is not None:
            self._producer = self._credentials.holder.own_id(self._producer)
        self._incarnation = incarnation
        self._awaited = enrolment is not None
        self._ourselves = f"{enrolment.cluster}.{enrolment.app}" if enrolment else ""
        self._nudge = nudge
        self._on_news = on_news
        self._refusals = refusals
        self._emitters: dict[str, Emitter] = {}
        self._cycles: set[str] = set()  # over several apps, that were logged
        self._found: set[str] = set()  # consumers from the cluster's directory
        self._news = trio.lowlevel.ParkingLot()
        self.on_consumer: Callable[[str, str], None] = lambda *_: None  # a consumer came or went
        self._nursery: trio.Nursery
        for stream in app.streams.values():
            if isinstance(stream, OutputStream):
                stream.carrier = self.senders[stream.name] = self._sender(stream)

    def _sender(self, stream: OutputStream) -> RemoteSender:
        sender = RemoteSender(
            stream.name,
            nudge=self._nudge,
            refusals=self._refusals,
            awaited=self._awaited,
        )
        for cluster, address in Topology(self._config).consumers(stream.name).items():
            if cluster not in self._emitters:
                self._emitters[cluster] = self._emitter([address])
            self._connect(sender, cluster, stream)
        if not sender.consumers and not self._awaited:
            log.warning(
                "no setting names a consumer of an output stream; only subscribers get its events",
                stream=stream.name,
                setting=f"s4.stream.{stream.name}.consumers",
            )
        return sender

    def _emitter(self, seeds: Sequence[str]) -> Emitter:
        return Emitter(
            seeds,
            credentials=self._credentials,
            queue_size=self._config[settings.REMOTE_SENDER_SIZE],
            on_news=self._on_news,
        )

    def _connect(self, sender: RemoteSender, consumer: str, stream: Stream) -> None:
        stage = self._pipeline.sender(stream.name, remote=True)
        options = outbox_options(stream, self._config)
        outbox = Outbox(stream.name, self._producer, key=stream.key, **options)
        routes = Routes(outbox, self._incarnation)
        sender.connect(consumer, self._emitters[consumer], ByExecutor(outbox, stage), routes)

    async def start(self, nursery: trio.Nursery) -> None:
        """Connect to the consumers; ``nursery`` also runs those that come later."""
        self._nursery = nursery
        for emitter in self._emitters.values():
            await nursery.start(emitter.run)

    def consumed(self, stream: str, consumers: SystemConsumers) -> None:
        """Set the consumers of a stream that the directory has, besides the configured ones."""
        sender = self.senders[stream]
        for name in [name for name in sender.consumers if name in self._found]:
            if name not in consumers:
                left = sender.disconnect(name)
                self.on_consumer(stream, name)
                log.warning(
                    "an app no longer consumes a stream",
                    stream=stream,
                    consumer=name,
                    events_without_verdict=left,
                )
                self._nudge()  # tasks no longer wait for this consumer
        for name, consumer in consumers.items():
            if name == self._ourselves:
                continue
            emitter = self._emitters.get(name)
            if emitter is None:
                emitter = self._emitters[name] = self._emitter(consumer.members)
                self._found.add(name)
                self._nursery.start_soon(emitter.run)
            else:
                emitter.seeds(consumer.members)
            if name not in sender.consumers:
                self._connect(sender, name, self._app.streams[stream])
                self.on_consumer(stream, name)
                log.info("an app consumes a stream", stream=stream, consumer=name)

    def led_by(self, inputs: Collection[str]) -> dict[str, list[str]]:
        """For each stream, the inputs whose events lead to it, as far as the code shows."""
        edges = self._pipeline.order.edges.targets
        reached = {name: dataflow.reached(edges, name) for name in inputs}
        return {
            stream: [name for name in inputs if stream in reached[name]] for stream in self.senders
        }

    def used(self, uses: Sequence[StreamUses]) -> None:
        """Log each cycle over several apps that leads through this one, once."""
        for cycle in over_apps(uses):
            path = describe(cycle)
            if path in self._cycles or not any(
                place.startswith(f"{self._ourselves} -> ") for place in cycle
            ):
                continue
            self._cycles.add(path)
            log.warning(
                "streams feed themselves over several apps, which wait for each other for ever "
                "when the stages on the way are full; have one of these shed, or put a stream of a "
                "log between",
                path=path,
                app=self._app.name,
            )

    def pump(self, now: float) -> float | None:
        """Send events that have waited for a token; return when to call again, or None."""
        dues = [sender.pump(now) for sender in self.senders.values()]
        return min((due for due in dues if due is not None), default=None)

    def heard(self) -> None:
        """Handle news of consumers; raises EventError if one no longer accepts a stream."""
        for name, sender in self.senders.items():
            for consumer in sender.begun_anew:
                sender.disconnect(consumer)
                self._connect(sender, consumer, self._app.streams[name])
            sender.news()
        self._news.unpark_all()

    def sent(self) -> Sent:
        """A mark after the events put on the output streams so far."""
        senders = self.senders.values()
        return Sent(self, [(each, *mark) for each in senders for mark in each.marks()])

    def owed(self) -> list[Owed]:
        """The unacknowledged events, without those of durable tasks, which ``exchange`` sends."""
        return [
            Owed(stream, consumer, events)
            for stream, sender in self.senders.items()
            for consumer, events in sender.unsettled.items()
        ]

    async def wait_news(self) -> None:
        """Wait until a consumer answers, comes or goes."""
        await self._news.park()

    async def wait_acknowledged(self) -> None:
        """Wait until all events are acknowledged and the consumers know that no more will come."""
        for emitter in self._emitters.values():
            emitter.hurry()
        while self.owed():
            due = self.pump(trio.current_time())  # the loop may have ended
            with trio.move_on_at(math.inf if due is None else due):
                await self._news.park()
        for emitter in self._emitters.values():
            emitter.finish()
            await emitter.wait_quiet()


@dataclass(eq=False, repr=False)
class Sent:
    """The events put on output streams until some moment."""

    _outputs: OutputStreams
    _marks: Sequence[tuple[RemoteSender, str, Mark]]

    async def wait_settled(self) -> None:
        """Wait until all of them are acknowledged by the consumers that are still there."""
        while True:
            self._marks = [
                (sender, consumer, mark)
                for sender, consumer, mark in self._marks
                if consumer in sender.consumers and not mark.reached
            ]
            if not self._marks:
                return
            await self._outputs.wait_news()
