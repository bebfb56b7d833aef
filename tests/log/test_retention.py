"""Retention deletes from the log, in one order, and appending may wait for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.log.partition.retention import (
    FIXED_BYTES,
    REST_MS,
    SLACK_BYTES,
    ClockSteps,
    Held,
    Keep,
    Row,
    Step,
    Work,
    admitted,
    cut,
    next_step,
    tight,
)


@pytest.mark.parametrize(
    ("keep", "below", "gone"),
    [
        (Keep(), 0, 0),
        (Keep(ms=350), 0, 20),
        (Keep(ms=400), 0, 10),  # exactly as old as is kept: kept
        (Keep(ms=1), 0, 30),  # the newest stays
        (Keep(size=400), 0, 0),
        (Keep(size=399), 0, 10),
        (Keep(size=150), 0, 30),
        (Keep(size=1), 0, 30),
        (Keep(ms=450, size=250), 0, 20),
        (Keep(), 25, 20),  # whole rows only
        (Keep(), 40, 40),  # the newest goes if it is asked for
        (Keep(ms=1), 40, 40),
    ],
)
def test_rows_go_by_age_by_size_or_when_asked_for(keep: Keep, below: int, gone: int) -> None:
    assert cut(ROWS, held(ROWS, below), keep, NOW, newest=30) == gone


SET = st.sampled_from([0, 7_200_000, -7_200_000, 60_000, -5_000])


@given(st.lists(st.tuples(SET, st.integers(0, 3_000_000)), max_size=12))
def test_nothing_is_deleted_early_however_the_clock_is_set(passing: list[tuple[int, int]]) -> None:
    keep, steady, set_by = Keep(ms=3_600_000), 0, NOW
    steps, rows = (
        ClockSteps(set_by, 0),
        list[tuple[int, int]](),
    )  # by the clock, and by the steady one
    for by, passed in passing:
        set_by += by
        rows.append((max(steady + set_by, *(at for at, _ in rows), 0), steady))
        steady += passed
        now = steady + set_by
        steps.note(now, steady)
        assert all(steady - since > keep.ms for at, since in rows if at < now - steps.kept(keep).ms)


def test_once_all_from_before_a_step_of_the_clock_is_gone_retention_is_as_it_was() -> None:
    keep, steps = Keep(ms=1000), ClockSteps(NOW, 0)
    steps.note(NOW + 5000, 0)
    assert steps.kept(keep) == Keep(ms=6000)
    assert steps.kept(Keep(size=9)) == Keep(size=9)
    steps.note(NOW + 6001, 1001)
    assert steps.kept(keep) == keep


def test_a_step_of_the_clock_lengthens_no_retention_that_had_passed_since() -> None:
    keep, steps = Keep(ms=1000), ClockSteps(NOW, 0)
    steps.note(NOW + 5000, 0)
    steps.note(NOW + 9500, 1500)
    assert steps.kept(keep) == Keep(ms=4000)
    assert steps.kept(Keep(ms=2000)) == Keep(ms=10_000)


def test_rows_are_deleted_first_then_space_is_released_then_logs_are_cut() -> None:
    old = held(ROWS, file=9 * SLACK_BYTES, free=2 * SLACK_BYTES, wal=PAGE)
    quiet = old._replace(last_ms=NOW - REST_MS - 1)
    keep, none = Keep(ms=1), Keep()
    assert next_step([quiet, old], [none, keep], NOW, False, 0) == Step(1, Work.DELETE)
    assert next_step([quiet, old], [none, none], NOW, False, 0) == Step(1, Work.SHRINK)
    assert next_step([quiet, old], [none, none], NOW, False, 1) == Step(0, Work.SHRINK)
    quiet, old = quiet._replace(free=0), old._replace(free=0)
    assert next_step([quiet, old], [none, none], NOW, False, 0) == Step(0, Work.CUT_WAL)
    assert next_step([old], [none], NOW, False, 0) is None
    assert next_step([old], [none], NOW, True, 0) == Step(0, Work.CUT_WAL)


def test_while_something_waits_for_room_write_ahead_logs_are_cut_before_anything_is_written() -> (
    None
):
    old = held(ROWS, free=PAGE, wal=PAGE)
    assert next_step([old], [Keep(ms=1)], NOW, True, 0) == Step(0, Work.CUT_WAL)
    old = old._replace(wal=0)
    assert next_step([old], [Keep(ms=1)], NOW, True, 0) == Step(0, Work.DELETE)
    assert next_step([old], [Keep()], NOW, True, 0) == Step(0, Work.SHRINK)


def test_free_pages_are_kept_while_events_come_and_nothing_waits_for_room() -> None:
    busy = held(ROWS, file=4 * SLACK_BYTES, free=SLACK_BYTES)
    assert next_step([busy], [Keep()], NOW, False, 0) is None
    assert next_step([busy], [Keep()], NOW, True, 0) == Step(0, Work.SHRINK)
    later = NOW + REST_MS
    assert next_step([busy], [Keep()], later, False, 0) == Step(0, Work.SHRINK)
    large = busy._replace(file=64 * SLACK_BYTES, free=4 * SLACK_BYTES)
    assert next_step([large], [Keep()], NOW, False, 0) is None


def test_partitions_are_served_in_turn() -> None:
    three = [held(ROWS)] * 3
    keeps = [Keep(ms=1)] * 3
    assert [
        step.partition for after in range(3) if (step := next_step(three, keeps, NOW, False, after))
    ] == [1, 2, 0]
    assert next_step([], [], NOW, False, -1) is None


def test_without_a_quota_everything_is_admitted() -> None:
    assert admitted([100, 200], free=0, used=10**12, quota=0) == 2


def test_a_quota_is_tight_before_it_is_used_up() -> None:
    assert not tight(used=5 << 20, quota=8 << 20)
    assert tight(used=7 << 20, quota=8 << 20)
    assert not tight(used=7 << 20, quota=0)


def test_a_quota_admits_what_fits_whatever_it_comes_to_on_the_disk() -> None:
    frames = [32_768] * 100
    used = 1 << 20
    some = admitted(frames, free=0, used=used, quota=8 << 20)
    assert 0 < some < 100
    assert used + 2 * 2 * some * 32_768 < 8 << 20
    assert admitted(frames, free=4 << 20, used=used, quota=8 << 20) > some
    assert admitted(frames, free=0, used=8 << 20, quota=8 << 20) == 0


sizes = st.integers(1, 1000)
row_lists = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 300), sizes), max_size=30)
keeps = st.builds(
    Keep, st.sampled_from([0, 1, 100, 1000, 5000]), st.sampled_from([0, 1, 500, 9000])
)


def rows_of(drawn: list[tuple[int, int, int]]) -> list[Row]:
    rows, at, then = [], 7, NOW - 4000
    for count, pause, size in drawn:
        then += pause
        rows.append(Row(at, at + count, then, size))
        at += count
    return rows


def allowed(rows: list[Row], row: Row, keep: Keep, below: int) -> bool:
    """Whether a row may go, said again in other words."""
    younger = sum(other.size for other in rows if other.start >= row.start)
    old = keep.ms > 0 and row.appended_ms < NOW - keep.ms
    large = keep.size > 0 and younger > keep.size
    return row.end <= below or ((old or large) and row is not rows[-1])


@given(row_lists, keeps, st.integers(0, 300), st.integers(1, 8))
def test_steps_delete_all_that_may_go_and_nothing_else(
    drawn: list[tuple[int, int, int]], keep: Keep, below: int, at_once: int
) -> None:
    rows = rows_of(drawn)
    end = rows[-1].end if rows else 7
    before = list(rows)
    oldest = rows[0].start if rows else end
    below = min(below, end)
    while True:
        now = held(rows, below, oldest, last_ms=NOW)
        step = next_step([now], [keep], NOW, False, 0)
        if step is None:
            break
        assert step == Step(0, Work.DELETE)
        gone = cut(rows[:at_once], now, keep, NOW, rows[-1].start)
        if gone == now.oldest:  # what was asked for ends within a row
            assert below > now.oldest
            below = 0
            continue
        oldest = gone
        deleted = [row for row in rows if row.end <= gone]
        assert all(allowed(before, row, keep, below) for row in deleted)
        rows = rows[len(deleted) :]
        assert gone == (rows[0].start if rows else end)
    if rows:
        assert not allowed(before, rows[0], keep, below)
    if before and below < end:
        assert rows[-1] == before[-1]


@given(
    st.lists(
        st.tuples(row_lists, keeps, st.integers(0, 20), st.integers(0, 20), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_housekeeping_ends_and_serves_every_partition(
    drawn: list[tuple[list[tuple[int, int, int]], Keep, int, int, bool]], pressed: bool
) -> None:
    files = [rows_of(rows) for rows, *_ in drawn]
    kept = [keep for _, keep, *_ in drawn]
    free = [pages * (1 << 20) for _, _, pages, _, _ in drawn]
    wal = [pages * PAGE for _, _, _, pages, _ in drawn]
    rest = [NOW - REST_MS - 1 if quiet else NOW for *_, quiet in drawn]
    last, steps = -1, []
    while True:
        now = [
            held(rows, 0, 7, file=32 << 20, free=free[at], wal=wal[at], last_ms=rest[at])
            for at, rows in enumerate(files)
        ]
        step = next_step(now, kept, NOW, pressed, last)
        if step is None:
            break
        last = at = step.partition
        steps.append(step)
        if step.work is Work.DELETE:
            rows = files[at]
            gone = cut(rows[:3], now[at], kept[at], NOW, rows[-1].start)
            assert gone > now[at].oldest
            files[at] = [row for row in rows if row.end > gone]
            free[at] += 1 << 20
        elif step.work is Work.SHRINK:
            free[at] -= 1 << 20
        else:
            wal[at] = 0
    works = [step.work for step in steps]
    order = [Work.DELETE, Work.SHRINK, Work.CUT_WAL]
    assert works == sorted(works, key=[*order[2:], *order[:2]].index if pressed else order.index)
    for at in range(len(files)):
        if pressed or rest[at] != NOW:
            assert free[at] == wal[at] == 0
        else:
            assert free[at] <= SLACK_BYTES


@given(
    st.lists(st.integers(1, 1 << 20), max_size=40),
    st.integers(0, 8 << 20),
    st.integers(0, 64 << 20),
    st.integers(1, 64 << 20),
)
def test_a_quota_admits_a_front_part_and_more_room_never_admits_less(
    weights: list[int], free: int, used: int, quota: int
) -> None:
    count = admitted(weights, free, used, quota)
    assert 0 <= count <= len(weights)
    assert count <= admitted(weights, free, used, quota + FIXED_BYTES)
    assert count <= admitted(weights, free + PAGE, used, quota)
    assert used + sum(weights[:count]) <= quota or count == 0


# -- set-up ---------------------------------------------------------------------------------------


NOW = 1_000_000

PAGE = 16_384


def held(rows: list[Row], below: int = 0, oldest: int = 0, **disk: int) -> Held:
    """The contents of a partition with these rows."""
    return Held(
        oldest=rows[0].start if rows else oldest,
        size=sum(row.size for row in rows),
        oldest_ms=rows[0].appended_ms if rows else 0,
        several=len(rows) > 1,
        last_ms=disk.get("last_ms", rows[-1].appended_ms if rows else 0),
        below=below,
        file=disk.get("file", 0),
        free=disk.get("free", 0),
        wal=disk.get("wal", 0),
    )


ROWS = [
    Row(0, 10, NOW - 500, 100),
    Row(10, 20, NOW - 400, 100),
    Row(20, 30, NOW - 300, 100),
    Row(30, 40, NOW - 200, 100),
]
