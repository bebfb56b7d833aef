"""The partitions that a container owns, and the life of their tasks.

Rules
- A container by itself owns all partitions; a member of a cluster those that its view gives it.
- A task claims its state before it starts. After the start its partition opens and its inputs are
  read. A task that fails is rolled back to its last commit, and begins anew.
- If tasks keep state, a member with more partitions than its share hands some over. The next owner
  goes on from the last commit. It takes one partition after the other: it says that it is ready for
  the next one when all that it has take events (``announcement``).
- It is ready for those whose state it has followed, and goes on from there.
- Only the newest view counts. It is announced to all peers before another partition is handed over.
  A hand-over goes on beside the views, because it may never end.
- A task that is done rests with every owner: it is not started, and its inputs are not read.
- A member that loses a partition while running it stops, because two owners would count twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import trio

from s4node import clocks
from s4node.app.app import App
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.coordination.membership import Membership
from s4node.cluster.coordination.view import View
from s4node.errors import S4Error
from s4node.logger import get_logger
from s4node.metrics.registry import Timer
from s4node.metrics.reporting import Reporting
from s4node.net.wire import frame as wire
from s4node.runtime.container.announcement import Announcement, HandOvers, to_follow
from s4node.runtime.container.durable_parts import DurableParts
from s4node.runtime.container.fast_parts import FastParts
from s4node.runtime.container.frame_router import FrameRouter
from s4node.runtime.container.lifecycle import Closing, Lifecycle, Step
from s4node.runtime.container.partitions import Partitions
from s4node.runtime.container.standbys import Standbys
from s4node.runtime.inputs.job_model import JobModel
from s4node.runtime.inputs.ports import Ports
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.outputs import Outputs
from s4node.runtime.outputs.subscribers import Subscribers
from s4node.runtime.task.gate import Phase
from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

_LAST_VERDICTS_SECONDS = 1.0
"""The limit for sending the last verdicts to producers."""


class Ownership:
    """The partitions of ``app`` that ``node`` owns, and their tasks.

    ``reporting`` starts in ``nursery``, before the first tasks. ``view`` has the owners of all
    partitions; ``closings`` are for the tasks, in the order of their start. ``gaining`` measures
    from the view that gives us partitions until they take events, ``recovering`` the replacement of
    failed tasks. ``settled`` is set once no partition is to come to us, and each has a living
    owner.
    """

    def __init__(
        self,
        app: App,
        node: str,
        incarnation: str,
        *,
        model: JobModel,
        lifecycle: Lifecycle,
        loop: RunLoop,
        router: FrameRouter,
        partitions: Partitions,
        inputs: Ports,
        subscribers: Subscribers,
        outputs: Outputs,
        replay: FastParts,
        reporting: Reporting,
        nursery: trio.Nursery,
    ) -> None:
        self.view = View.alone(app.partitions)
        self.closings: dict[Task, Closing] = {}
        self.gaining = Timer()
        self.recovering = Timer()
        self.settled = trio.Event()
        self._app = app
        self._node = node
        self._incarnation = incarnation
        self._model = model
        self._lifecycle = lifecycle
        self._loop = loop
        self._router = router
        self._partitions = partitions
        self._tasks = partitions.tasks
        self._inputs = inputs
        self._subscribers = subscribers
        self._outputs = outputs
        self._replay = replay
        self._reporting = reporting
        self._nursery = nursery
        self._membership: Membership | None = None
        self._ready_for = Announcement()
        self._hand_overs = HandOvers()
        self._left: dict[int, int] = {}  # partitions handed over, with their epochs
        self._leaving = False
        self.left = False  # others may own our partitions now

    # -- alone, or as a member -----------------------------------------------------------------

    async def own_all(self) -> None:
        await self._own(self.view)

    async def join(self, enrolment: Enrolment, nursery: trio.Nursery) -> None:
        """Join the cluster, own the partitions of its first complete view, and follow its views."""
        standbys = self._replay.standbys
        self._membership = membership = enrolment.membership(
            self._router.listener.address,
            self._app.partitions,
            state=self._replay.state,
            follows=self._replay.can_be_standby,
        )
        send, views = trio.open_memory_channel[View](math.inf)

        def look_again() -> None:
            send.send_nowait(membership.view)

        if standbys is not None:
            standbys.on_change = look_again
        nursery.start_soon(self._membership.run, send.send_nowait)
        view = await views.receive()
        while not view.epoch:  # nothing is assigned before all members are here
            view = await views.receive()
        directory = enrolment.directory(self._inputs.ports, self._outputs.carriers)
        await directory.register()
        nursery.start_soon(directory.run, self._outputs.consumed)
        await directory.learned.wait()  # events put before would be dropped
        await self._own(view)
        nursery.start_soon(self._follow, view, views, nursery, look_again)

    def stop_handing_over(self) -> None:
        """Hand no partition over any more, because we are about to leave all of them."""
        self._leaving = True

    async def leave(self) -> None:
        """Let others own our partitions, if we are a member."""
        self.left = True
        if self._membership is not None:
            listener = self._router.listener
            with trio.move_on_after(_LAST_VERDICTS_SECONDS):
                await listener.send_answers()
                self._inputs.give_up()
                await listener.send_answers()
            await self._membership.leave()

    async def _follow(
        self,
        view: View,
        views: trio.MemoryReceiveChannel[View],
        nursery: trio.Nursery,
        look_again: Callable[[], None],
    ) -> None:
        """Own what each view gives, and hand over what it has us owe; ``look_again`` is called when
        that is done."""
        assert self._membership is not None
        while True:
            if self._replay.keeps and not self._leaving:
                standbys, coming = self._replay.standbys, view.coming
                if standbys is not None:
                    self._follow_state(standbys, view)
                    coming -= view.given - standbys.ready
                self._ready_for.choose(coming, trio.current_time())
                await self._membership.take(self._ready_for.partitions)
                unseen, ready = view.mine - self._tasks.keys(), view.to_hand_over
                ready &= self._tasks.keys()
                next_one = self._hand_overs.begin_one(ready, trio.current_time(), unseen)
                if next_one is not None:
                    nursery.start_soon(self._hand_over_one, next_one, look_again)
            due = math.inf if self._leaving else min(self._ready_for.until, self._hand_overs.until)
            with trio.move_on_at(due) as waiting:
                view = await views.receive()
            if waiting.cancelled_caught:
                continue
            while views.statistics().current_buffer_used:
                view = views.receive_nowait()
            if self._leaving and view.mine < self._tasks.keys():
                return  # others have taken over
            if view != self.view:
                await self._own(view)

    def _follow_state(self, standbys: Standbys, view: View) -> None:
        next_ones = to_follow(view.given, standbys.followed, standbys.stuck)
        standbys.follow(view.follows | next_ones)

    # -- tasks -----------------------------------------------------------------------------------

    async def _own(self, view: View) -> None:
        """Take over the partitions that ``view`` gives us, and announce the owners to all peers."""
        lost = self._tasks.keys() - view.mine
        if lost:
            raise S4Error(
                f"{self._node} has lost partitions {sorted(lost)} of app {self._app.name!r} to "
                f"other members while it was running them; it stops, because two owners would "
                f"count twice"
            )
        left = {
            p for p, epoch in self._left.items() if view.epochs[p] == epoch
        }  # not yet reassigned
        self._left = {p: self._left[p] for p in left}
        gained = sorted(view.mine - self._tasks.keys() - left)
        if self._membership is not None:
            self._ready_for.gain(gained)
            await self._membership.take(self._ready_for.partitions)
        await self._gain(view, gained)
        self.view = view
        all_owned = not view.coming and all(view.owners)  # else more may come
        if not self._replay.keeps or all_owned:  # without state, others keep what they have
            self.settled.set()
        if self._membership is None:
            return
        self._router.headers |= owners_header(view, self._router.listener.address)
        self._inputs.announce()
        self._subscribers.announce()
        self._outputs.assign(view.owners, view.epoch, view.origin, self._tasks.keys())
        self._loop.nudge()

    async def _gain(self, view: View, partitions: list[int]) -> None:
        began = clocks.steady()
        models = [self._model.tasks[each] for each in partitions]
        gained = [self._partitions.make(one.index, one.name, one.ssps) for one in models]
        origin = self._incarnation if self._membership is None else view.origin
        await self._replay.restore_tasks(gained, origin, view.epochs)
        await self._lifecycle.reached(Step.READERS)
        if not self._reporting.started:
            await self._nursery.start(self._reporting.run)
        await self._lifecycle.reached(Step.WINDOW_TIMER)
        for task in gained:
            if task.gate.phase is not Phase.RESTING:
                await self._start(task)
        await self._lifecycle.reached(Step.TASKS)
        for task in gained:  # after all have started, as a frame may have events for any of them
            self._inputs.open_partition(task.partition, task.backlog.stages)
            self._loop.wake(task)
        await self._replay.start_reading(gained)
        await self._lifecycle.reached(Step.LOOP)
        took = clocks.steady() - began
        if gained:
            self.gaining.update(took)
        if gained and self._membership is not None:
            log.info(
                "owns partitions",
                app=self._app.name,
                node=self._node,
                partitions=partitions,
                epoch=view.epoch,
                seconds=round(took, 3),
            )

    async def _start(self, task: Task) -> None:
        self.closings[task] = self._lifecycle.closes(f"task {task.name}", task.close)
        await self._loop.start(task)

    async def _close(self, task: Task) -> None:
        await self._lifecycle.close(self.closings.pop(task))

    async def replace(self, old: Task) -> None:
        """Replace a failed task by a new one, restored from the last commit."""
        assert isinstance(self._replay, DurableParts)
        began = clocks.steady()
        await self._close(old)
        new = await self._replay.restore.restore_failed(old)
        self._inputs.roll_back(new.partition)
        self._loop.nudge()
        self._outputs.tasks[new.partition].return_own_events()
        await self._start(new)
        self.recovering.update(clocks.steady() - began)
        self._loop.wake(new)

    async def _hand_over_one(self, partition: int, ended: Callable[[], None]) -> None:
        await self._hand_over(partition)
        self._hand_overs.end_one(partition)
        ended()

    async def _hand_over(self, partition: int) -> None:
        """Stop a task, and hand its partition and state over to another member."""
        assert isinstance(self._replay, DurableParts)
        assert self._membership is not None
        await self._replay.restore.wait_swept(partition)
        if self._leaving:
            return
        began = clocks.steady()
        self._inputs.refrain(partition)
        await self._replay.consumers.revoke(partition)
        task = self._tasks[partition]
        while not task.has_retired:  # a task that fails meanwhile is replaced
            task = self._tasks[partition]
            task.retire()
            self._loop.wake(task)
            await self._replay.consumers.wait(partial(self._may_leave, task))
        await self._replay.release(task)
        if task.gate.phase is not Phase.RESTING:
            await self._close(task)
        self._partitions.remove(task)
        # after the task's waiting events, some of which are in its rows
        self._outputs.tasks.pop(partition).revoke()
        self._left[partition] = self.view.epochs[partition]
        self._inputs.leave_one(partition)
        self._replay.cuts.remove(partition)
        self._replay.recovery.careful.remove(partition)
        log.info(
            "handing a partition over",
            app=self._app.name,
            node=self._node,
            partition=partition,
            seconds=round(clocks.steady() - began, 3),
        )
        await self._membership.hand_over([partition])

    def _may_leave(self, task: Task) -> bool:
        may_retire = task.gate.may_enter(Phase.RETIRING)  # a new task that has just started
        return task.has_retired or may_retire or self._tasks[task.partition] is not task


def owners_header(view: View, address: str) -> wire.Headers:
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
