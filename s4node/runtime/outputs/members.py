"""The events that a member of an app sends to the partitions of the other members.

Rules
- Each stream has an outbox for events that the app itself has put, through the ``sender`` stage of
  the stream. An input also has a forwarder for events of producers; such an event is done when the
  owner has acknowledged it. Each has a lane for each partition. If a partition moves to us, its
  lane leads to ourselves until its events have arrived, so that nothing overtakes them.
- Members that stop together go on taking events from each other until all is quiet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

import trio
from msgspec.structs import replace

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.cluster.coordination.view import View
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import S4Error
from s4node.events.event import EventBatch
from s4node.metrics.statistics import StageStatistics
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.release import AtOnce, ByExecutor
from s4node.net.egress.routes import Routes
from s4node.net.egress.settlements import PassedOn, Receipts
from s4node.net.wire import frame as wire
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.output_streams import outbox_options
from s4node.runtime.outputs.refusals import Refusals
from s4node.stages.executors import SENDER

_CARRIER = "carrier"
"""The suffix of producers that forward the events of other producers."""

_QUIET_SECONDS = 0.25
"""A stopping member waits until nothing has come from the others for so long."""


class Work(Protocol):
    """The work of our partitions."""

    @property
    def processed(self) -> int:
        """The number of events processed."""
        ...

    @property
    def has_waiting(self) -> bool:
        """True if events wait, also for room in a full stage."""
        ...


class Members:
    """Sends events to the other members of ``app``, by ``emitter``.

    A container that is ``alone`` sends nothing: it has no outboxes.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        pipeline: Pipeline,
        *,
        node: str,
        incarnation: str,
        partitions: int,
        alone: bool,
        emitter: Emitter,
        refusals: Refusals,
    ) -> None:
        self.emitter = emitter
        self.outboxes: dict[str, ByExecutor] = {}
        self._forwarders: dict[str, Receipts] = {}
        self._routed: list[tuple[AtOnce, Routes]] = []
        self._config = config
        self._pipeline = pipeline
        self._producer = f"{node}-{incarnation}"  # another host's container may have our name
        self._incarnation = incarnation
        self._partitions = partitions
        self._refusals = refusals
        for stream in () if alone else app.streams.values():
            options = outbox_options(stream, config)
            if not isinstance(stream, OutputStream):
                stage = pipeline.sender(stream.name, remote=False)
                release = ByExecutor(Outbox(stream.name, self._producer, **options), stage)
                self.outboxes[stream.name] = release
                self._lead(release)
            if isinstance(stream, InputStream):
                carrier = Outbox(stream.name, f"{self._producer}-{_CARRIER}", **options)
                self._forwarders[stream.name] = Receipts(carrier)
                self._lead(AtOnce(carrier), wire.ANSWER_NOW)

    def _lead(self, release: AtOnce, flags: int = 0) -> None:
        """Route an outbox to the partitions of the other members."""
        release.box.open_lanes(self._partitions, wire.ROUTED)
        headers = {wire.CLUSTER: self._config[settings.CLUSTER_NAME]}
        routes = Routes(release.box, self._incarnation, headers=headers, flags=flags)
        self._routed.append((release, routes))
        self.emitter.add(routes)

    def assign(self, view: View, ours: Collection[int]) -> None:
        """Route events to the current owners of partitions; ``ours`` run here."""
        for release, routes in self._routed:
            owners = [
                "" if partition in ours and not release.behind(partition) else owner
                for partition, owner in enumerate(view.owners)
            ]
            self.emitter.assign(routes, owners, view.epoch, view.origin)

    # -- events on their way -----------------------------------------------------------------

    def carries(self, stream: str, partition: int) -> bool:
        """Return True if forwarded events of producers for our partition have yet to arrive."""
        forwarder = self._forwarders.get(stream)
        return forwarder is not None and forwarder.box.behind(partition)

    def unsettled(self, stream: str) -> int:
        """The number of events of a stream that their owners have not acknowledged."""
        return sum(each.unsettled for each, _ in self._routed if each.box.stream == stream)

    def forward(self, batch: EventBatch) -> None:
        """Forward a producer's batch for a partition that another member runs."""
        self._forwarders[batch.stream].forward(batch)
        self.emitter.wake()

    def put(self, stream: str, partition: int, events: list[Any], *, waits: bool) -> int:
        """Send events that the app has put; return how many were dropped for lack of room.

        A source that never ``waits``, such as a timer, may put much more than fits.
        """
        outbox = self.outboxes[stream]
        if not waits and outbox.full:
            self._pipeline.spill(stream, outbox.stage)
        dropped = outbox.put(events, partition, trio.current_time())
        if outbox.holds:
            self._pipeline.watch(stream, "sender", outbox)
        self.emitter.wake()
        return dropped

    def pump(self, now: float) -> float | None:
        """Send events that have waited for a token; return when to call again, or None."""
        dues = []
        for outbox in self.outboxes.values():
            if outbox.stage.depth:
                if outbox.pump(now):
                    self.emitter.wake()
                dues.append(outbox.due(now))
        return min((due for due in dues if due is not None), default=None)

    @property
    def has_waiting(self) -> bool:
        return any(outbox.stage.depth for outbox in self.outboxes.values())

    def heard(self) -> None:
        """Handle news of members; raises S4Error if one does not accept a stream."""
        for outbox in self.outboxes.values():
            for refusal in outbox.box.refusals.drain():
                self._refusals.report(SENDER, refusal)
        for routes in self.emitter.carried:
            carried = routes.outbox
            if carried.error:
                raise S4Error(f"stream {carried.stream!r} to the other members: {carried.error}")

    # -- stopping ----------------------------------------------------------------------------

    async def drain(self, loop: RunLoop, partitions: Work) -> None:
        """Process events that the members of a stopping cluster still send each other."""
        while True:
            before = partitions.processed
            with trio.move_on_after(_QUIET_SECONDS):
                await trio.sleep_forever()
            unsettled = any(self.unsettled(stream) for stream in self.outboxes)
            waiting = not loop.idle or partitions.has_waiting
            if partitions.processed == before and not waiting and not unsettled:
                return
            if unsettled:
                self.emitter.hurry()

    async def finish(self) -> None:
        """Tell the other members that no more events will come."""
        self.emitter.finish()
        await self.emitter.wait_quiet()

    def passed_on(self) -> dict[str, PassedOn]:
        """The counts, by stream, of producers' events that other members count."""
        return {name: forwarder.passed_on for name, forwarder in self._forwarders.items()}

    def statistics(self) -> Iterator[StageStatistics]:
        """The ``sender`` stages, including the forwarded events of producers."""
        for stream, outbox in self.outboxes.items():
            told = outbox.statistics()
            if stream not in self._forwarders:
                yield told
                continue
            carried = self._forwarders[stream].box
            yield replace(
                told,
                depth=told.depth + carried.pending,
                bytes=told.bytes + carried.pending_bytes,
                in_flight=told.in_flight + carried.in_flight,
            )


def told(view: View, address: str) -> wire.Headers:
    """The headers of answers to hellos: the owners of partitions; ``address`` is our own."""
    nodes = list(dict.fromkeys((address, *view.members)))
    at = {node: index for index, node in enumerate(nodes)}
    return {
        wire.ADDRESS: address,
        wire.NODES: nodes,
        wire.OWNERS: [at.get(owner, -1) for owner in view.owners],
        wire.EPOCH: view.epoch,
        wire.ORIGIN: view.origin,
    }
