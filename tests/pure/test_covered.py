"""When a commit covers an event that was left out of a batch with events of several tasks."""

from __future__ import annotations

from s4node import Event
from s4node.container.culprits import Culprits, Fault, Place
from s4node.container.isolation import is_covered
from s4node.container.mixed import MixedPart, sorted_out
from s4node.event import EventBatch
from s4node.progress.input_progress import InputProgress, InputReceipt
from s4node.systems.system import SystemStreamPartition


class Click(Event):
    user: str


def test_it_is_covered_exactly_when_the_place_to_go_on_at_is_behind_it() -> None:
    ssp = SystemStreamPartition("log", "clicks", 0)
    progress = InputProgress(ssp, 0, lambda *_: None)
    batch = EventBatch("clicks", 0, [Click(str(n)) for n in range(6)], first=0)
    whole = InputReceipt(progress, 0, 6, batch)
    found = sorted_out(range(6), batch.events, lambda e: int(e.user == "3"), 0, lambda *_: None)
    batch.events, batch.numbers = found.events, found.numbers
    batch.receipt = MixedPart(whole, found, lambda *_: None)
    culprits = Culprits()
    for number in (0, 2, 5):
        culprits.add(Place(str(ssp), number), Fault("it fails"))
    left = culprits.leave_out(batch)
    assert [one.place.number for one in left] == [0, 2, 5]
    seen = []
    for at in range(len(batch.events) + 1):
        seen.append((progress.safe, [is_covered(batch, one) for one in left]))
        assert seen[-1][1] == [one.place.number < progress.safe for one in left]
        if at == len(batch.events):
            break
        batch.at = at + 1
        if batch.at < len(batch.events):
            batch.receipt.passed(batch.number(at), batch.number(at) + 1)
        else:
            batch.receipt.done()
    assert [covered for _, covered in seen] == [
        [False, False, False], [True, False, False], [True, True, True],
    ]  # fmt: skip
