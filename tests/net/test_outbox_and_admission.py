"""Outboxes and an admission together, over a network that loses everything it can."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from net_simulation import WHAT, Wire, World, happen
from seeds_of_the_day import every_fourth


@pytest.mark.parametrize("disconnects", [False, True])
@pytest.mark.parametrize("seed", every_fourth(100))
def test_every_event_is_handled_once_in_order_and_accounted_for_whatever_happens(
    seed: int, disconnects: bool
) -> None:
    random = Random(seed)
    world = World(
        producers=random.randint(1, 4),
        partitions=random.randint(1, 4),
        capacity=random.choice([1, 2, 3, 8, 30]),
        frame_events=random.randint(1, 6),
        routing=random.choice(["crc32m:", "crc32m:user", "crc32m:?"]),
        executor=random.choice(["block", "block", "shed"]),
        max_bytes=random.choice([40, 150, 1 << 20]),
    )
    for name in world.names:
        world.connect(name)
    for _ in range(600):
        happen(world, random, disconnects)
        world.check()
    world.settle()
    if disconnects:  # and once more: a settled stream goes on
        world.put(world.names[0], 5, "good")
        world.settle()


class Streams(RuleBasedStateMachine):
    """The same, with what happens chosen, and made as short as can be, by hypothesis."""

    @initialize(
        producers=st.integers(1, 3),
        partitions=st.integers(1, 3),
        capacity=st.integers(1, 6),
        frame_events=st.integers(1, 4),
        executor=st.sampled_from(["block", "shed"]),
        max_bytes=st.sampled_from([40, 150, 1 << 20]),
    )
    def begin(
        self,
        producers: int,
        partitions: int,
        capacity: int,
        frame_events: int,
        executor: str,
        max_bytes: int,
    ) -> None:
        self.world = World(
            producers,
            partitions,
            capacity,
            frame_events,
            executor=executor,
            max_bytes=max_bytes,
        )

    def name(self, number: int) -> str:
        return self.world.names[number % len(self.world.names)]

    def wire(self, number: int) -> Wire | None:
        wires = [w for w in self.world.wires.values() if w is not None] + self.world.old_wires
        return wires[number % len(wires)] if wires else None

    @rule(number=st.integers(0, 2), count=st.integers(1, 5), what=st.sampled_from(WHAT))
    def put(self, number: int, count: int, what: str) -> None:
        self.world.put(self.name(number), count, what)

    @rule(number=st.integers(0, 2), budget=st.sampled_from([1, 100, 1000]))
    def send(self, number: int, budget: int) -> None:
        self.world.send(self.name(number), budget)

    @rule(number=st.integers(0, 2))
    def connect(self, number: int) -> None:
        self.world.connect(self.name(number))

    @rule(number=st.integers(0, 2), arriving=st.integers(0, 3))
    def disconnect(self, number: int, arriving: int) -> None:
        self.world.disconnect(self.name(number), arriving)

    @rule(number=st.integers(0, 2))
    def spoil(self, number: int) -> None:
        self.world.spoil(self.name(number))

    @rule(number=st.integers(0, 2), again=st.booleans())
    def ask(self, number: int, again: bool) -> None:
        if again:
            self.world.greet_again(self.name(number))
        else:
            self.world.ask(self.name(number))

    @rule(number=st.integers(0, 5))
    def node_reads(self, number: int) -> None:
        wire_ = self.wire(number)
        if wire_ is not None:
            self.world.node_reads(wire_)

    @rule(number=st.integers(0, 5), busy=st.booleans())
    def node_tells(self, number: int, busy: bool) -> None:
        wire_ = self.wire(number)
        if wire_ is not None:
            self.world.node_tells(wire_, busy)

    @rule(number=st.integers(0, 2))
    def hear(self, number: int) -> None:
        self.world.hear(self.name(number))

    @rule(number=st.integers(0, 3))
    def node_notices(self, number: int) -> None:
        if self.world.old_wires:
            self.world.node_notices(self.world.old_wires[number % len(self.world.old_wires)])

    @rule(partition=st.integers(0, 2), parts=st.integers(1, 2))
    def process(self, partition: int, parts: int) -> None:
        self.world.process(partition % len(self.world.admission.stages), parts)

    @rule(index=st.integers(0, 5))
    def finish(self, index: int) -> None:
        self.world.finish(index)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestStreams = Streams.TestCase
TestStreams.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
