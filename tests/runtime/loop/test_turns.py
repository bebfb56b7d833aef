"""The turns of tasks: who has the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import trio
from input_systems import RefusalList

from s4node import clocks
from s4node.app.stream_task import Collector, Coordinator, Envelope, TaskApp
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.receipts import BatchReceipt
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.container import hooks
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.stream_task_processor import StreamTaskProcessor
from s4node.runtime.task.task import Task
from s4node.stages.executors import STREAM

MAX_SECONDS = 0.005
SLOW, FAST = 0.005, 0.0001
"""Seconds that an event takes."""
BATCHES = 100
ARRIVES = 20
"""After how many events those of a late task arrive."""


async def test_small_batches_do_not_wait_for_a_long_step_of_another_task_each() -> None:
    app = Spending()
    with clocks.replaced(lambda: app.now, lambda: app.now):
        await run_to_the_end(app, [SLOW, FAST])
    assert len(app.spent) == 2 * BATCHES
    last = max(n for n, seconds in enumerate(app.spent) if seconds == FAST)
    assert app.spent[:last].count(SLOW) <= 5  # a hundred small ones take the time of two


async def test_tasks_with_equal_steps_take_turns() -> None:
    app = Spending()
    with clocks.replaced(lambda: app.now, lambda: app.now):
        await run_to_the_end(app, [SLOW, SLOW * 1.001])
    first = app.spent[: BATCHES // 2]
    assert abs(first.count(SLOW) * 2 - len(first)) <= 2


async def test_a_task_that_had_nothing_to_do_has_the_next_step_when_it_has() -> None:
    app = Spending()
    with clocks.replaced(lambda: app.now, lambda: app.now):
        await run_to_the_end(app, [SLOW, SLOW, FAST], late={2: ARRIVES})
    assert app.spent.index(FAST) == ARRIVES


# -- set-up ---------------------------------------------------------------------------------------


class Work(Event):
    seconds: float


class Spending(TaskApp):
    """Spends time; notes how much each event took, in the order of the events."""

    def __init__(self) -> None:
        super().__init__("spending", lambda: self, inputs=["memory.work"])
        self.now = 0.0
        self.spent: list[float] = []
        self.arrivals: dict[int, Callable[[], None]] = {}

    def on_init(self) -> None:
        self.create_input_stream("work", types=Work)

    def process(self, envelope: Envelope, _to: Collector, _of: Coordinator) -> None:
        self.now += envelope.message.seconds
        self.spent.append(envelope.message.seconds)
        if arrives := self.arrivals.pop(len(self.spent), None):
            arrives()


async def run_to_the_end(
    app: Spending, costs: list[float], late: Mapping[int, int] | None = None
) -> None:
    """Run a task with batches of an event for each cost; ``late`` ones get them after events."""
    config = Config.from_values({"s4.cluster.partitions": str(len(costs))})
    await hooks.declare(app, config, len(costs))
    pipeline, settings = Pipeline(app, config), TaskSettings.from_config(config)
    shell: Any = SimpleNamespace(
        after_turn=lambda: None, commit=lambda _: False, hand_on=None, arrived=lambda: True
    )
    loop = RunLoop(max_events=2048, max_seconds=MAX_SECONDS, shell=shell)
    for number, cost in enumerate(costs):
        task = Task(
            app,
            number,
            stages=pipeline.stages_of(number),
            clock=trio.current_time,
            held=pipeline.order.held,
            processor=StreamTaskProcessor(
                app, number, trio.current_time, name=f"Partition {number}", settings=settings
            ),
            settings=settings,
        )
        ssp = SystemStreamPartition("memory", "work", number)
        task.backlog.add_input(ssp, pipeline.stage_of("work", STREAM, number))
        loop.adopt(task)
        await loop.start(task)
        progress = InputProgress(ssp, 0, RefusalList())

        def arrive(
            task: Task = task,
            cost: float = cost,
            ssp: SystemStreamPartition = ssp,
            progress: InputProgress = progress,
        ) -> None:
            for at in range(BATCHES):
                batch = InputBatch(ssp, at, 1, 0, 0)
                batch.events = [Work(cost)]
                batch.receipt = BatchReceipt(progress, at, at + 1)
                task.backlog.offer(batch)
            loop.wake(task)

        if late and number in late:
            app.arrivals[late[number]] = arrive
        else:
            arrive()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        while len(app.spent) < len(costs) * BATCHES:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
