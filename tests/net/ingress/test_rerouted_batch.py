"""When a commit covers an event that was left out of a batch with events of several tasks."""

from __future__ import annotations

from typing import Any

from input_systems import RefusalList

from s4node import App, Event
from s4node.events.event import EventBatch
from s4node.events.keys import Partitioner
from s4node.events.routing import KeyRule, Router
from s4node.net.ingress.rerouted_batch import sorted_out
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.receipts import BatchReceipt
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.inputs.input_batches import MixedBatch
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.poison.isolation import is_covered
from s4node.runtime.task.poison.poison_events import Fault, LeftOut, Place, PoisonEvents, place_of
from s4node.stages.stage import Stage


def test_an_event_is_covered_exactly_when_the_offset_to_resume_at_is_after_it() -> None:
    progress = InputProgress(SSP, 0, RefusalList())
    batch = EventBatch("clicks", 0, [Click(str(n)) for n in range(6)], first=0)
    whole = BatchReceipt(progress, 0, 6)
    found = sorted_out(batch, whole, ROUTER, Sent())
    batch.events, batch.numbers, batch.receipt = found.events, found.numbers, found.receipt
    poison_events = PoisonEvents()
    for number in (0, 2, 5):
        poison_events.add(Place(str(SSP), number), Fault("it fails"))
    left = poison_events.leave_out(batch)
    assert [one.place.number for one in left] == [0, 2, 5]
    seen = []
    for at in range(len(batch.events) + 1):
        seen.append((progress.safe, [is_covered(batch, one) for one in left]))
        assert seen[-1][1] == [one.place.number < progress.safe for one in left]
        if at == len(batch.events):
            break
        batch.at = at + 1
        if batch.at < len(batch.events):
            batch.receipt.complete(batch.number(at), batch.number(at) + 1)
        else:
            batch.receipt.done()
    assert [covered for _, covered in seen] == [
        [False, False, False],
        [True, False, False],
        [True, True, True],
    ]


def test_one_that_the_task_itself_has_put_is_covered_as_soon_as_commits_do_not_keep_it() -> None:
    app = App("shop")
    stream = app.create_stream("clicks", types=Click)
    backlog = Backlog(
        app, {"clicks": Stage(10)}, lambda: 0.0, held=set(), rates={}, chooser=None, bootstrap=None
    )
    poison_events = PoisonEvents()
    first, second, bad = (Click(user) for user in ("a", "b", "bad"))
    poison_events.add(place_of(EventBatch("clicks", 0, [bad]), 0), Fault("it fails"))
    left: list[LeftOut] = []
    backlog.on_load = lambda batch: left.extend(poison_events.leave_out(batch))
    batch = EventBatch("clicks", 0, [first, second, bad])
    backlog.offer(batch)
    assert list(backlog.own_events()) == [(stream.name, [first, second, bad])]
    assert backlog.choose()
    assert list(backlog.own_events()) == [(stream.name, [first, second])]  # what a commit keeps now
    assert is_covered(batch, left[0])


class Undecodable(InputBatch):
    """Nothing in it decodes."""

    __slots__ = ()

    def load(self) -> None:
        self.events, self.numbers = [], []
        self.undecoded = [(number, "it does not decode", b"x") for number in range(3)]


def test_a_batch_with_events_of_others_may_be_one_in_which_nothing_decodes() -> None:
    owner = RefusalList()
    progress = InputProgress(SSP, 0, owner)
    source = Undecodable(SSP, 0, 3, 0, 0)
    batch = MixedBatch(source, 0, progress, 0, ROUTER, Sent())
    batch.load()
    refused = [number for number, _ in owner.refusals]
    assert (batch.events, refused, progress.safe) == ([], [0, 1, 2], 3)
    assert batch.receipt is not None
    batch.receipt.done()
    assert progress.safe == 3


# -- set-up ---------------------------------------------------------------------------------------


class Sent:
    """Takes what is put onward."""

    def put(self, *_: Any) -> None: ...


class Click(Event):
    user: str


SSP = SystemStreamPartition("log", "clicks", 0)
HOMES = Partitioner(2)
KEYS = {HOMES.partition_of(key): key for key in range(10)}
ROUTER = Router(KeyRule(lambda event: KEYS[event.user == "3"]), HOMES)
