"""The producers of a stream in a partition, as sources of its watermark. Pure.

Rules
- A producer that is connected is there. One with an id of its own, and a task, may return. One that
  has left is a source until its last events are done. A program says that it leaves; a task does
  not, as its next owner goes on. Its former lives have left once another one is there.
- Another container of the app may forward events of producers. It is a source once it has sent one.
- A producer cannot send while it has no credit, or while events of it wait here.
- A task reports its time; it is not taken from its events. Once it has, it is idle only if it
  reports that, while it is connected: it may have a step that takes very long.
- A task that has its events from streams without a time reports none: its events show it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from s4node.net.ingress.admission import MAX_WATCHED, StreamAdmission
from s4node.net.ingress.flow import Presence
from s4node.net.ingress.producer_lane import ProducerLane, origin_of
from s4node.net.ingress.producer_life import task_of
from s4node.net.wire.frame import TASK
from s4node.runtime.event_time.sources import SourceState


class LaneSources:
    """The lanes of an admission in one partition; other containers may forward events over the
    connections in ``forwarding``.
    """

    def __init__(
        self,
        admission: StreamAdmission,
        partition: int,
        forwarding: Collection[Hashable] = (),
    ) -> None:
        self._admission = admission
        self._partition = partition
        self._forwarding = forwarding
        self._lanes: dict[str, ProducerLane] = {}  # by the name of the source
        self._ended: dict[str, ProducerLane] = {}  # that have ended, and were not asked for since
        self._moved: set[str] | None = None  # none are noted before someone asks

    @property
    def has_changes(self) -> bool:
        return self._moved is None or bool(self._moved)

    def take_changes(self) -> Collection[str]:
        if self._moved is None or len(self._moved) >= MAX_WATCHED:  # not all were noted
            lanes, partition = self._admission.lanes, self._partition
            self._moved = {producer for producer, each in lanes if each == partition}
            self._moved.update(lane.producer for lane in self._lanes.values())
            self._admission.watched[partition] = self._moved
        names, joined = set(), set()
        for producer in self._moved:
            name = origin_of(self._admission.stream, self._partition, producer)
            names.add(name)
            lane = self._admission.lanes.get((producer, self._partition))
            if lane is None:
                gone = self._lanes.pop(name, None)
                if gone is not None and gone.presence is Presence.ENDED:
                    self._ended[name] = gone
            else:
                self._lanes[name] = lane
                if self._has_only_joined(lane):
                    joined.add(producer)
        self._moved.clear()
        self._moved.update(joined)  # these come with their first event
        return names

    def states(self, among: Collection[str] | None = None) -> Iterable[SourceState]:
        """The producers that are there, or may return; only those ``among`` these, if given.

        As of the last call of ``take_changes``.
        """
        names = self._lanes if among is None else [name for name in among if name in self._lanes]
        lanes = [*map(self._lanes.__getitem__, names), *self._ended.values()]
        self._ended.clear()
        for lane in self._former(lanes):
            lane.left = True
        return [_state_of(lane) for lane in lanes if not self._has_only_joined(lane)]

    def _former(self, lanes: Iterable[ProducerLane]) -> list[ProducerLane]:
        """The lanes of tasks that are not there, but have another life that is."""
        away = [each for each in lanes if each.connection is None and task_of(each.producer)[0]]
        known = self._lanes.values() if away else ()
        here = {task_of(each.producer)[0] for each in known if each.connection is not None}
        return [each for each in away if task_of(each.producer)[0] in here]

    def _has_only_joined(self, lane: ProducerLane) -> bool:
        forwards = lane.connection in self._forwarding and not lane.producer.startswith(TASK)
        return forwards and lane.expected == 0


def _state_of(lane: ProducerLane) -> SourceState:
    is_task = lane.producer.startswith(TASK)
    reports = is_task and not lane.untimed
    connected = lane.connection is not None
    has_reported = reports and lane.passed is not None and connected
    return SourceState(
        lane.origin,
        here=lane.presence is Presence.HERE,
        returns=(lane.own_id or is_task) and lane.presence is not Presence.ENDED,
        waits=lane.safe < lane.expected,
        blocked=lane.limit <= lane.expected or has_reported,
        reports=reports,
        left=lane.left and not connected,
    )
