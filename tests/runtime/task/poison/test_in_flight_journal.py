"""What a task has under way is known to who takes over from a process that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import filled

from s4node.errors import StateError
from s4node.runtime.task.poison.in_flight_journal import SLOTS, enter
from s4node.runtime.task.poison.suspects import Suspect

CLICKS, VIEWS = "log.clicks[0]", "views[0]@a producer"


def killed(origin: str, first: int, last: int, kills: int = 1) -> Suspect:
    """One whose process was killed; it has no record of how it ends."""
    return Suspect(origin, first, last, 0, kills)


def test_events_in_flight_at_a_death_are_suspects_of_the_next_owner(tmp_path: Path) -> None:
    first = enter(tmp_path, 1, {})
    assert first.suspects == []
    slot = first.take_slot()
    first.write_slot(CLICKS, 10, 19)
    first.write_slot(VIEWS, 7, 7, slot)
    first.write_slot(CLICKS, 20, 29)  # and that is the end of it
    second = enter(tmp_path, 2, {CLICKS: 15})
    assert second.suspects == [killed(CLICKS, 20, 29), killed(VIEWS, 7, 7)]
    first.clear_slot()  # it was only paused, and writes where nobody looks any more
    second.write_slot(CLICKS, 23, 23)
    third = enter(tmp_path, 3, {CLICKS: 20, VIEWS: 8})
    assert killed(CLICKS, 23, 23, 2) in third.suspects
    assert all(one.origin == CLICKS for one in third.suspects)


def test_a_process_that_ends_by_itself_leaves_only_the_suspects_that_it_had(tmp_path: Path) -> None:
    first = enter(tmp_path, 1, {})
    first.write_slot(CLICKS, 10, 19)
    second = enter(tmp_path, 2, {})
    second.write_slot(CLICKS, 11, 11)
    second.close(second.suspects)
    third = enter(tmp_path, 3, {})
    assert third.suspects == [killed(CLICKS, 10, 19)]
    third.close([])
    assert list(tmp_path.iterdir()) == []


def test_the_task_s_own_events_are_suspected_until_somebody_says_that_they_are_committed(
    tmp_path: Path,
) -> None:
    hops = "hops (put by the task itself)"
    first = enter(tmp_path, 1, {})
    first.write_slot(hops, 7, 7)
    second = enter(tmp_path, 2, {})
    assert second.suspects == [killed(hops, 7, 7)]
    second.acquit(second.suspects)
    second.write_slot(hops, 7, 7)  # another one that is equal
    assert enter(tmp_path, 3, {}).suspects == [killed(hops, 7, 7)]


def test_ended_events_are_not_suspects_and_their_slots_are_reused(tmp_path: Path) -> None:
    first = enter(tmp_path, 1, {})
    slots = [first.take_slot() for _ in range(SLOTS)]
    assert slots[-1] == -1  # of which nothing is known
    for slot in slots:
        if slot > 0:
            first.write_slot(CLICKS, slot, slot, slot)
    for slot in slots:
        first.free_slot(slot)
    assert enter(tmp_path, 2, {}).suspects == []


@pytest.mark.parametrize("damage", [b"{", b'[["log.clicks\xff[0]"', b"[" * 100_000])
def test_an_unreadable_file_of_suspects_has_no_suspects(tmp_path: Path, damage: bytes) -> None:
    first = enter(tmp_path, 1, {})
    first.write_slot(CLICKS, 10, 19)
    first.close([Suspect(CLICKS, 10, 19)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert enter(tmp_path, 2, {}).suspects == []


def test_origins_have_long_names_but_for_those_that_no_slot_holds(tmp_path: Path) -> None:
    first = enter(tmp_path, 1, {})
    long, longer = f"views[0]@{'ü' * 498}", f"views[0]@{'ü' * 499}"
    first.write_slot(long, 7, 7, first.take_slot())
    first.write_slot(longer, 8, 8, first.take_slot())
    first.write_slot(longer, 9, 9, first.take_slot())
    assert enter(tmp_path, 2, {}).suspects == [killed(long, 7, 7)]


def test_a_journal_of_another_layout_has_no_suspects(tmp_path: Path) -> None:
    first = enter(tmp_path, 1, {})
    first.write_slot(CLICKS, 10, 19)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[: SLOTS * 256])
    assert enter(tmp_path, 2, {}).suspects == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be written"):
        enter(tmp_path / "none", 1, {})


def test_a_full_disk_is_reported_when_the_journal_is_made_and_not_by_a_signal(
    small_disk: Path,
) -> None:
    first = enter(small_disk, 1, {})
    first.write_slot(CLICKS, 10, 19)
    filled(small_disk)
    with pytest.raises(StateError, match=r"No space left on device; .* make room on its disk"):
        enter(small_disk, 2, {})
    (small_disk / "ballast").unlink()
    assert enter(small_disk, 2, {}).suspects == [killed(CLICKS, 10, 19)]


def test_on_a_full_disk_every_slot_is_written_and_suspects_stay_as_they_were(
    small_disk: Path,
) -> None:
    """In a process of its own, for a signal would end it."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, small_disk], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr
    (small_disk / "ballast").unlink()
    found = enter(small_disk, 3, {}).suspects
    assert killed(CLICKS, 5, 9) in found
    assert {one.first for one in found if one.origin == VIEWS} == set(range(1, SLOTS))


FULL = f"""
import sys
from pathlib import Path
from s4node.runtime.task.poison.in_flight_journal import enter
from s4node.runtime.task.poison.suspects import Suspect

folder = Path(sys.argv[1])
enter(folder, 1, {{}}).write_slot({CLICKS!r}, 5, 9)
journal = enter(folder, 2, {{}})
with (folder / "ballast").open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
while (slot := journal.take_slot()) > 0:
    journal.write_slot({VIEWS!r}, slot, slot, slot)
journal.acquit([])
journal.acquit([Suspect("another", 1, 1)])
print("written")
"""
