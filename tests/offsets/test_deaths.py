"""Deaths in a row are counted, the event of a careful owner is named, and skipped on request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from s4node.offsets import death_files
from s4node.offsets.death_files import DeathFiles
from s4node.offsets.deaths import OWN, EventPlace


def test_owners_that_die_are_counted_until_one_is_careful(task: Path) -> None:
    counts = []
    for epoch in range(1, 6):
        files = death_files.enter(task, epoch, {})
        counts.append((files.deaths.count, files.deaths.careful))
    assert counts == [(0, False), (1, False), (2, False), (3, True), (4, True)]


def test_an_end_in_order_and_a_start_that_is_well_past_begin_the_count_anew(task: Path) -> None:
    for epoch in (1, 2, 3):
        files = death_files.enter(task, epoch, {})
    files.close()
    assert death_files.enter(task, 4, {}).deaths.count == 0
    files = death_files.enter(task, 5, {})
    assert files.deaths.count == 1
    files.well_past()
    assert death_files.enter(task, 6, {}).deaths.count == 1


def test_a_damaged_file_of_an_owner_counts_no_death(task: Path) -> None:
    death_files.enter(task, 1, {})
    (task / "deaths-1").write_bytes(b"")
    assert death_files.enter(task, 2, {}).deaths.count == 0
    assert [entry.name for entry in task.iterdir()] == ["deaths-2"]


def test_the_event_at_which_a_careful_owner_died_is_named_until_the_next_event(task: Path) -> None:
    job = task.parent.parent
    files = careful(task)
    files.event_begins(EVENT)
    assert death_files.event_of(job, os.getpid()) == EVENT
    assert death_files.event_of(job, os.getpid() + 1) is None
    following = death_files.enter(task, 5, {})
    assert following.deaths.at == EVENT
    assert death_files.found(job) == [(task, EVENT)]
    files = death_files.enter(task, 6, {})  # it died before it had begun an event
    assert files.deaths.at == EVENT
    assert files.died_ms == 0


def test_an_owner_that_died_between_two_events_names_none(task: Path) -> None:
    files = careful(task)
    files.event_begins(EVENT)
    files.event_ended()
    assert death_files.event_of(task.parent.parent, os.getpid()) is None
    assert death_files.enter(task, 5, {}).deaths.at is None


def test_an_event_is_skipped_by_every_next_owner_until_its_position_is_committed(
    task: Path,
) -> None:
    death_files.skip(task, EVENT)
    death_files.skip(task, EVENT)
    for epoch, position, skipped in ((1, 0, [EVENT]), (2, 17, [EVENT]), (3, 18, []), (4, 0, [])):
        assert death_files.enter(task, epoch, {EVENT.origin: position}).skipped == skipped


def test_an_event_of_the_tasks_own_is_skipped_until_a_commit_covers_that(task: Path) -> None:
    own = EventPlace("Partition 0", "hops", 0, f"hops{OWN}", 1 << 60)
    death_files.skip(task, own)
    death_files.enter(task, 1, {})
    files = death_files.enter(task, 2, {})
    assert files.skipped == [own]
    files.drop_skipped([(own.origin, own.number)])
    assert death_files.enter(task, 3, {}).skipped == []


def test_a_place_with_quotes_is_given_to_the_command_as_the_shell_reads_it() -> None:
    place = EventPlace("Partition 0", "clicks", 0, "clicks[0]@joe's", 17)
    told = place.advice("counts")
    assert told.endswith(r"s4 dead-letter skip counts 'Partition 0/clicks[0]@joe'\''s:17'")


# -- set-up ---------------------------------------------------------------------------------------


EVENT = EventPlace("Partition 0", "clicks", 0, "log.clicks[0]", 17)


def careful(task: Path) -> DeathFiles:
    for epoch in (1, 2, 3, 4):
        files = death_files.enter(task, epoch, {})
    return files


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks" / "Partition 0"
    folder.mkdir(parents=True)
    return folder
