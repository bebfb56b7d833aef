"""The disk has been waited for when a commit or an event is acknowledged, for power cuts."""

from __future__ import annotations

import re
from pathlib import Path

from power import unwaited


def test_all_files_of_a_commit_are_on_the_disk_when_commits_wait_for_it(tmp_path: Path) -> None:
    found = unwaited(COMMIT, tmp_path / "home")
    assert {each for each in found if not NO_MATTER.fullmatch(each)} == set()


def test_a_restored_folder_counts_once_all_that_was_written_to_it_is_on_the_disk(
    tmp_path: Path,
) -> None:
    """Were the rows in several writes, a power cut could take the last ones only."""
    found = unwaited(RESTORE, tmp_path / "home")
    assert {each for each in found if not NO_MATTER.fullmatch(each)} == set()


def test_all_files_of_an_acknowledged_event_are_on_the_disk_when_the_log_waits_for_it(
    tmp_path: Path,
) -> None:
    found = unwaited(LOG, tmp_path / "home")
    assert {each for each in found if not NO_MATTER.fullmatch(each)} == set()


# -- set-up ---------------------------------------------------------------------------------------


COMMIT = """
import os
import sys
from pathlib import Path

from s4node.events.keys import crc32m
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims
from s4node.state import epochs
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.database import Database
from s4node.state.job import task_folder
from s4node.state.remote_job import RemoteJob
from s4node.state.task_state import TaskState

folder = Path(sys.argv[1]) / "state" / "default" / "app"
remote_job = RemoteJob(f"file://{sys.argv[1]}/remote_job", folder, sync=True)
for life in range(2):
    claims = TaskClaims(folder, sync=True)
    guard = JobGuard(1, "grouper", "hasher")
    claims.admit(guard)
    remote_job.admit(guard)
    place = task_folder(folder, "task")
    shipment = remote_job.task("task")
    claim = claims.claim("task", "", 0, max(epochs.highest(place), shipment.highest()))
    shipment.claim(claim.fence, "", 0)
    make = lambda own: Database(own, sync=True)
    state = TaskState(
        epochs.claim(place, claim.fence, make, shipment), crc32m, fence=claim.fence, ship=shipment
    )
    keeping = CheckpointRetention(place, claim.fence, Policy(1, 1, 0), shipment)
    keeping.take_over(state)
    for number in range(1 + life):
        state.set_meta("fact", number)
        state.begin_commit({"log.clicks[0]": number})
        claims.renew(claim, 1, state.last[1] + 1)
        state.write_commit()
        state.end_commit(written=True)
        if not life:
            keeping.make_checkpoint(state)()
    if life:
        os._exit(0)
    state.close()
    claims.close()
"""

RESTORE = """
import os
import sys
from pathlib import Path

from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.database import PIECE_ROWS, Database
from s4node.state.remote_job import RemoteJob
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec

folder = Path(sys.argv[1]) / "state" / "default" / "app"
remote_job = RemoteJob(f"file://{sys.argv[1]}/remote_job", folder, sync=True)
for fence in (1, 2):
    task = remote_job.task("task")
    assert task.highest() == fence - 1
    task.claim(fence, "", 0)
    database = epochs.claim(folder / "tasks" / f"machine-{fence}", fence, Database, task)
    if fence == 2:
        os._exit(0)
    state = TaskState(database, crc32m, fence=fence, ship=task)
    task.take_over(state.last, state.owners, lambda: None)
    values = state.store(StoreSpec("values", int, int))
    for number in range(3 * PIECE_ROWS):
        values.put(number, number)
    state.begin_commit({})
    state.write_commit()
    state.end_commit(written=True)
    state.close()
"""

LOG = """
import os
import sys
from pathlib import Path

import trio
from s4node.log.store import LogSettings, open_log
from tests.log_frames import append, numbered

async def main() -> None:
    for life in range(2):
        async with open_log(LogSettings(Path(sys.argv[1]) / "deep" / "log", sync="full")) as log:
            partition = (await log.create("clicks", 1)).partitions[0]
            await append(partition, numbered("a", 10 * life, 10))
            if life:
                os._exit(0)

trio.run(main)
"""

NO_MATTER = re.compile(
    r".*(/LOG|/LOG\.old|/LOCK|\.sqlite-shm|/log/lock|/probe)|.*/tasks/(task|machine-1)/1/.*"
)
"""Files that nothing reads after a power cut: of the owner before there is a copy, and in the
folder of the probe the loser of two writers creates and removes a file that it never waits for."""
