"""What a remote sender counts, whoever consumes its stream."""

from __future__ import annotations

import math

import pytest
import trio

from s4node import GenericEvent
from s4node.errors import EventError
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.release import ByExecutor
from s4node.net.egress.routes import Routes
from s4node.runtime.outputs.refusals import Refusals
from s4node.runtime.outputs.remote_sender import RemoteSender
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
    assert shop.latest.value == -math.inf  # two events wait for their tokens
    for second in range(9):
        one.pump(trio.current_time() + second)
    assert shop.latest.value == 101
    assert connect(one, "bank").latest.value == 101
    with pytest.raises(EventError, match="is not a valid time"):
        one.watermark(0)


# -- set-up ---------------------------------------------------------------------------------------


def sender() -> RemoteSender:
    return RemoteSender(
        "totals",
        nudge=lambda: None,
        refusals=Refusals(),
        awaited=False,
    )


BLOCKS = StageSettings(REMOTE_SENDER, "totals", "block", 100, 1_000_000, 0, False)


def connect(one: RemoteSender, consumer: str, settings: StageSettings = BLOCKS) -> Outbox:
    """Have it consume the stream, and take nothing."""
    emitter = Emitter([], credentials=None, queue_size=100, on_news=lambda: None)
    outbox = Outbox("totals", "app", types=[GenericEvent])
    one.connect(consumer, emitter, ByExecutor(outbox, Stage(settings)), Routes(outbox, "1"))
    return outbox


def put(one: RemoteSender, count: int) -> None:
    one.extend([GenericEvent(n=n) for n in range(count)])


def counts(one: RemoteSender) -> dict[str, tuple[int, int, dict[str, int]]]:
    return {name: (s.depth, s.admitted, s.shed) for name, s in one.statistics().items()}
