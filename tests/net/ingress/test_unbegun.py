"""Events of a lane that may go back to their producer, and are sent again."""

from __future__ import annotations

import random

from lanes import NODE
from test_admission import data, greet, made

from s4node.events.event import EventBatch
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.flow import Presence
from s4node.net.ingress.producer_lane import ProducerLane
from s4node.net.ingress.unbegun import cut_off, last_frames


def test_only_the_last_frames_of_a_lane_go_back_to_their_producer() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        admission, lane = opened()
        frames = batches(admission, *(rng.randint(1, 9) for _ in range(8)))
        begun = {frame for frame in frames if rng.random() < 0.3}
        done = {frame for frame in begun if rng.random() < 0.5}
        for frame in done:
            assert frame.receipt is not None
            frame.receipt.done()
        waiting = [frame for frame in frames if frame not in begun]
        rng.shuffle(waiting)
        gone = last_frames(waiting, is_there)
        last = max((i for i, frame in enumerate(frames) if frame in begun), default=-1)
        assert gone == {frame.receipt for frame in frames[last + 1 :]}
        assert lane.expected == sum(frame.size for frame in frames[: last + 1])
        assert admission.admitted == lane.expected
        for frame in frames:
            if frame.receipt is not None and frame.receipt not in gone and frame not in done:
                frame.receipt.done()
        admission.validate()
        assert lane.safe == lane.expected == lane.upto


def test_a_frame_of_which_a_part_has_begun_does_not_go_back() -> None:
    admission, lane = opened()
    first, second = batches(admission, 4, 4)
    parts = []
    for frame in (first, second):
        assert frame.receipt is not None
        frame.receipt.parts = 2
        for odd in (0, 1):
            numbers = [frame.first + odd, frame.first + odd + 2]
            parts.append(EventBatch("ticks", odd, [0, 0], frame.receipt, frame.first, numbers))
    assert last_frames(parts[1:], is_there) == {second.receipt}
    assert lane.expected == 4


def test_events_after_the_current_one_go_back_if_they_are_the_last_of_their_lane() -> None:
    admission, lane = opened()
    first, second = batches(admission, 5, 5)
    first.at = 2
    assert not cut_off(first, is_there)
    assert last_frames([second], is_there) == {second.receipt}
    assert cut_off(first, is_there)
    assert lane.expected == 2
    assert first.receipt is not None
    first.receipt.done()
    assert lane.upto == 2


def test_nothing_goes_back_to_a_producer_that_has_gone_or_has_ended_its_stream() -> None:
    admission, lane = opened()
    frames = batches(admission, 5)
    admission.forget("p", NODE)
    assert last_frames(frames, is_there) == set()
    greet(admission)
    admission.gone(NODE, 0.0)
    assert last_frames(frames, is_there) == set()
    assert not cut_off(frames[0], is_there)
    assert lane.expected == 5
    greet(admission)
    assert last_frames(frames, is_there) == {frames[0].receipt}


# -- set-up ---------------------------------------------------------------------------------------


def is_there(lane: ProducerLane) -> bool:
    return lane.presence is Presence.HERE


def batches(admission: StreamAdmission, *counts: int, peer: str = "p") -> list[EventBatch]:
    """Frames of so many events, admitted one after the other."""
    found = []
    for count in counts:
        first = admission.lanes[peer, 0].expected
        receipt = admission.admit(data(first, count, peer=peer), NODE, 0.0)
        assert receipt is not None
        found.append(EventBatch("ticks", 0, list(range(count)), receipt, receipt.first))
    return found


def opened() -> tuple[StreamAdmission, ProducerLane]:
    admission, _ = made("fast", [100_000])
    greet(admission)
    return admission, admission.lanes["p", 0]
