"""The watchdog: of many steps that hold up a busy process, one is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import trio
from structlog.testing import capture_logs

from s4node import clocks
from s4node.runtime.loop.run_loop import Rest, RunLoop
from s4node.runtime.loop.watchdog import Watchdog


class Slow:
    """A loop in which each step has taken a second when it is looked at."""

    def __init__(self, looks: int) -> None:
        self.over = threading.Event()
        self._began = self._steps(looks)

    @property
    def step_began(self) -> float:
        return next(self._began, 0.0)

    def _steps(self, looks: int) -> Iterator[float]:
        for look in range(looks):
            yield clocks.steady() - 1 - look
        self.over.set()


def test_of_many_steps_that_hold_up_their_process_one_in_a_minute_is_reported() -> None:
    loop = Slow(20)
    with capture_logs() as logs, Watchdog(cast("RunLoop", loop), 0.001):
        assert loop.over.wait(60)
    told: list[Any] = [line for line in logs if "holds up its process" in line["event"]]
    assert len(told) == 1
    assert "test_of_many_steps" in told[0]["stack"]
    assert "others" not in told[0]


async def test_a_process_rests_while_all_of_it_waits_and_not_while_it_works() -> None:
    now = 0.0

    class Waits(trio.abc.Instrument):
        def before_io_wait(self, _: float) -> None:
            nonlocal now
            now += 1  # behind the note of the begin

    with clocks.replaced(lambda: now, time.time), Rest() as rest:
        trio.lowlevel.add_instrument(waits := Waits())
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        waited = now
        assert rest.seconds == waited > 0
        now += 100  # it works
        await trio.lowlevel.checkpoint()
        assert waited < rest.seconds == now - 100
        rested = rest.seconds
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(waits)
    assert now > rested + 100
    assert rest.seconds == rested
