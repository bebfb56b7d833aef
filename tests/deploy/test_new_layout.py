"""The promises of a new layout about the tables of its tasks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.new_layout import check_number
from s4node.deploy.repartition import Repartition
from s4node.errors import CheckpointError
from s4node.events.keys import KEY_GROUPS, crc32m
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.runtime.inputs.grouper import BY_PARTITION
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import saved_state, task_folder
from s4node.state.rows import PREFIX_BYTES, prefix
from s4node.state.task_state import TaskState

USERS = [b"user-%d" % n for n in range(40)]
TABLES = {
    0: ("pe Clicks", "pe Orders", "pe Visits"),
    1: ("pe Visits", "pe Clicks"),  # each task numbers its tables as it comes to use them
}


def test_a_job_whose_keys_are_where_kafkas_producers_put_them_keeps_its_tasks() -> None:
    with pytest.raises(CheckpointError, match=r"s4.hasher = kafka.*begin a job of another name"):
        check_number(JobGuard(4, BY_PARTITION, "kafka"), 8)


def test_tables_that_tasks_have_numbered_differently_keep_their_rows(tmp_path: Path) -> None:
    guard = a_job(tmp_path, TABLES)
    Repartition("shop", tmp_path, Config.from_values({}), guard, 3).run()
    found: dict[tuple[str, bytes], int] = {}
    numbers = []
    for partition in range(3):
        with saved_state(tmp_path, f"Partition {partition}", None) as state:
            assert state is not None
            numbers.append(dict(state.tables))
            for name, number in state.tables.items():
                for row, value in state.database.table(number):
                    user = row[PREFIX_BYTES:]
                    assert group_of(user) * 3 // KEY_GROUPS == partition
                    found[name, user] = msgspec.msgpack.decode(value)
    assert found == {
        (name, user): count_of(name, user)
        for user in USERS
        for name in TABLES[group_of(user) * 2 // KEY_GROUPS]
    }
    assert numbers[0] == numbers[1] == numbers[2]


# -- set-up ---------------------------------------------------------------------------------------


def group_of(user: bytes) -> int:
    return crc32m(user) % KEY_GROUPS


def count_of(table: str, user: bytes) -> int:
    return len(table) * 1000 + USERS.index(user)


def a_job(folder: Path, tables: dict[int, tuple[str, ...]]) -> JobGuard:
    """A stopped job, with a row for each user in each table of the user's task."""
    for partition, names in tables.items():
        place = task_folder(folder, f"Partition {partition}")
        state = TaskState(epochs.claim(place, 1, Database), crc32m, fence=1)
        for name in names:
            number = state.table(name)
            for user in USERS:
                if group_of(user) * len(tables) // KEY_GROUPS == partition:
                    value = msgspec.msgpack.encode(count_of(name, user))
                    state.database.fill([prefix(group_of(user), number) + user], [value])
        state.begin_commit({})
        state.write_commit()
        state.end_commit(written=True)
        state.close()
    guard = JobGuard(len(tables), BY_PARTITION, settings.HASHER.default)
    with closing(TaskClaims(folder)) as store:
        store.admit(guard)
        store.set_tasks(guard, {f"Partition {p}": (1, 1) for p in tables}, now_ms())
    return guard
