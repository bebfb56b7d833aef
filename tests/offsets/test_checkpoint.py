"""Checkpoints and the guard of a job, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from s4node.errors import CheckpointError
from s4node.offsets.checkpoint import Checkpoint, JobGuard

CLICKS = ("log", "clicks", 0)
JOB = JobGuard(4, "by-partition", "crc32m", {"log.clicks": 4, "log.views": 2})


def test_a_checkpoint_keeps_inputs_that_its_task_does_not_read_any_more() -> None:
    before = Checkpoint({("log", "clicks", 0): 7, ("log", "old", 0): 3}, 1)
    after = Checkpoint({("log", "clicks", 0): 9}, 2).over(before)
    assert after == Checkpoint({("log", "clicks", 0): 9, ("log", "old", 0): 3}, 2)


def test_a_checkpoint_is_read_from_positions_by_place() -> None:
    checkpoint = Checkpoint.at({"log.a.b[3]": 1 << 50, "memory.x[12]": 0}, 12)
    assert checkpoint == Checkpoint({("log", "a.b", 3): 1 << 50, ("memory", "x", 12): 0}, 12)


@pytest.mark.parametrize("place", ["", "log", "log.a", "log.a[]", "a[1]", "log.a[x]"])
def test_a_position_of_no_place_is_damage(place: str) -> None:
    with pytest.raises(CheckpointError, match=r"is not system.stream\[partition\]"):
        Checkpoint.at({place: 1}, 0)


def test_a_job_is_read_as_it_was_written() -> None:
    job = replace(JOB, layout=2)
    assert JobGuard.from_row(job.to_row()) == job
    with pytest.raises(CheckpointError, match="is not a job"):
        JobGuard.from_row({"than tasks": 4})


@pytest.mark.parametrize(
    "now",
    [
        JOB,
        JobGuard(4, "by-partition", "crc32m", {"log.clicks": 4}),  # an input has gone
        JobGuard(4, "by-partition", "crc32m", {**JOB.counts, "log.new": 4}),  # one has come
        JobGuard(  # more partitions, each event finds the task of its key
            4, "by-partition", "crc32m", {"log.clicks": 4, "log.views": 3}, frozenset(["log.views"])
        ),
    ],
)
def test_a_job_goes_on_where_no_key_moves(now: JobGuard) -> None:
    assert now.problems(JOB) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            JobGuard(8, "by-partition", "crc32m", {"log.clicks": 8, "log.views": 2}),
            [
                (
                    "it had 4 tasks and would have 8, so keys would move away from their state; "
                    "give log.clicks (8 partitions) a key in the app, which allows more partitions "
                    "than tasks"
                ),
                (
                    "log.clicks had 4 partitions and has 8, so its producers now put keys where "
                    "other tasks read; give the input stream a key in the app, or start again "
                    "without progress"
                ),
            ],
        ),
        (
            JobGuard(4, "by-ssp", "s4", JOB.counts),
            [
                (
                    "it was written with job.systemstreampartition.grouper.factory = by-partition, "
                    "which is now by-ssp; restore that value"
                ),
                "it was written with s4.hasher = crc32m, which is now s4; restore that value",
            ],
        ),
        (
            JobGuard(6, "by-ssp", "crc32m", JOB.counts),  # the tasks are others for that
            [
                (
                    "it was written with job.systemstreampartition.grouper.factory = by-partition, "
                    "which is now by-ssp; restore that value"
                ),
            ],
        ),
        (
            JobGuard(4, "by-partition", "crc32m", {"log.clicks": 4, "log.views": 1}),
            [
                (
                    "log.views had 2 partitions and has 1, so progress in the others would be "
                    "lost; give it 2 partitions again"
                )
            ],
        ),
        (
            JobGuard(4, "by-partition", "crc32m", JOB.counts, keys="other/1"),
            [
                (
                    "its keys were encoded as utf8-msgpack/4096, and this program encodes other/1; "
                    "use the version of s4node that wrote it"
                )
            ],
        ),
    ],
)
def test_a_job_that_would_move_keys_is_told_why(now: JobGuard, said: list[str]) -> None:
    assert now.problems(JOB) == said


def test_tasks_that_follow_from_inputs_are_as_many_with_those_inputs() -> None:
    before = JobGuard(6, "by-ssp", "crc32m", JOB.counts)
    (problem,) = JobGuard(4, "by-ssp", "crc32m", {"log.clicks": 4}).problems(before)
    assert problem == (
        "it had 6 tasks and would have 4, so keys would move away from their state; have it read "
        "all inputs and partitions that it read before: log.clicks (4), log.views (2)"
    )


def test_the_guard_remembers_inputs_that_are_gone() -> None:
    now = JobGuard(4, "by-partition", "crc32m", {"log.clicks": 4, "log.new": 1})
    assert now.over(JOB).counts == {"log.clicks": 4, "log.views": 2, "log.new": 1}


def test_consumed_startpoints_stay_with_the_offsets_until_nobody_can_meet_them() -> None:
    first = Checkpoint({CLICKS: 5}, 1, frozenset({"a"}))
    assert Checkpoint.at(first.positions(), 1, first.consumed) == first
    second = Checkpoint({CLICKS: 7}, 2, frozenset({"b"})).over(first)
    assert second == Checkpoint({CLICKS: 7}, 2, frozenset({"a", "b"}))
    assert second.without({"a", "c"}) == Checkpoint({CLICKS: 7}, 2, frozenset({"b"}))
