"""The counts of an output stream's carrier, whoever consumes it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from s4node import GenericEvent
from s4node.errors import EventError
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.release import ByExecutor
from s4node.net.egress.routes import Routes
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.channels import Channel
from s4node.runtime.outputs.output_carrier import OutputCarrier
from s4node.runtime.outputs.refusals import Refusals
from s4node.stages.executors import REMOTE_SENDER, StageSettings
from s4node.stages.stage import Stage


async def test_counts_of_a_consumer_survive_its_leaving_and_returning() -> None:
    one = sender()
    connect(one, "shop")
    connect(one, "bank")
    put(one, 3)
    assert counts(one) == {"shop": (3, 3, {}), "bank": (3, 3, {})}
    assert one.disconnect("shop") == 3
    put(one, 2)
    gone = {"its consumer has gone": 3}
    assert counts(one) == {"shop": (0, 3, gone), "bank": (5, 5, {})}
    connect(one, "shop")
    put(one, 1)
    assert counts(one) == {"shop": (1, 4, gone), "bank": (6, 6, {})}
    assert one.disconnect("shop") == 1
    assert counts(one)["shop"] == (0, 4, {"its consumer has gone": 4})


async def test_a_time_is_told_after_the_events_before_it_and_to_later_consumers() -> None:
    one = sender()
    shop = connect(one, "shop", StageSettings(REMOTE_SENDER, "totals", "throttle", 100, 9999, 10))
    put(one, 3)
    one.watermark(100.0)
    one.watermark(101.0)
    assert shop.box.latest.value == -math.inf  # two events wait for their tokens
    for second in range(9):
        shop.pump(trio.current_time() + second)
    assert shop.box.latest.value == 101
    assert connect(one, "bank").box.latest.value == 101
    with pytest.raises(EventError, match="is not a valid time"):
        one.watermark(0)


# -- set-up ---------------------------------------------------------------------------------------


def sender() -> OutputCarrier:
    shell: Any = SimpleNamespace(commit=None, after_turn=None)
    loop = RunLoop(max_events=1, max_seconds=1, shell=shell)
    return OutputCarrier("totals", loop, Refusals(), awaited=False)


BLOCKS = StageSettings(REMOTE_SENDER, "totals", "block", 100, 1_000_000, 0, False)


def connect(one: OutputCarrier, consumer: str, settings: StageSettings = BLOCKS) -> ByExecutor:
    """Have it consume the stream, and take nothing."""
    owner = SimpleNamespace(take_news=lambda: None)
    emitter = Emitter([], credentials=None, queue_size=100, owner=owner)
    outbox = Outbox("totals", "app", types=[GenericEvent])
    release = ByExecutor(outbox, Stage(settings))
    one.connect(Channel(consumer, release, Routes(outbox, "1"), emitter))
    return release


def put(one: OutputCarrier, count: int) -> None:
    one.extend([GenericEvent(n=n) for n in range(count)])


def counts(one: OutputCarrier) -> dict[str, tuple[int, int, dict[str, int]]]:
    return {name: (s.depth, s.admitted, s.shed) for name, s in one.statistics().items()}
