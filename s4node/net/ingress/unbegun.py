"""Frames that have not begun: a stopping node leaves them to their producers. Pure.

Rules
- A producer keeps every event until its verdict, and resends it to the node that answers next. So
  an event may be dropped here if its producer is connected and has not ended its stream.
- A lane's numbers have no holes, so only its last frames can be dropped, back to a frame with an
  event that has begun. Earlier frames stay, because events after them would be processed twice.
- If a frame is processed in order, the events after the last one that has begun can be dropped,
  too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from s4node.events.event import EventBatch
from s4node.net.ingress.producer_lane import FrameReceipt, ProducerLane
from s4node.offsets.receipts import BatchReceipt

WillResend = Callable[[ProducerLane], bool]
"""Returns True if a lane's producer keeps events without a verdict, and will resend them."""


def last_frames(waiting: Iterable[EventBatch], kept: WillResend) -> set[Any]:
    """The receipts of the frames to drop; ``waiting`` are all batches that have not begun.

    Their lanes expect them again.
    """
    events: Counter[FrameReceipt] = Counter()
    for batch in waiting:
        frame = _frame_of(batch)
        if frame is not None and kept(frame.progress):
            events[frame] += batch.size if batch.numbers is None else len(batch.numbers)
    by_end: dict[ProducerLane, dict[int, FrameReceipt]] = {}
    for frame, count in events.items():
        if count == frame.end - frame.first:  # all of its parts wait
            by_end.setdefault(frame.progress, {})[frame.end] = frame
    gone = set()
    for lane, frames in by_end.items():
        while lane.expected in frames:
            frame = frames.pop(lane.expected)
            lane.left_to_producer(frame.first)
            gone.add(frame)
    return gone


def cut_off(batch: EventBatch, kept: WillResend) -> bool:
    """Cut a frame before its current event, if the frame is its lane's last; else return False."""
    frame = _frame_of(batch)
    if frame is None or batch.numbers is not None or frame.parts != 1:
        return False
    lane = frame.progress
    if lane.expected != frame.end or not kept(lane):
        return False
    number = batch.number(batch.at)
    frame.cut(number)
    lane.left_to_producer(number)
    return True


def _frame_of(batch: EventBatch) -> FrameReceipt | None:
    receipt = batch.receipt
    frame = isinstance(receipt, BatchReceipt) and isinstance(receipt.progress, ProducerLane)
    return receipt if frame else None  # type: ignore[return-value]
