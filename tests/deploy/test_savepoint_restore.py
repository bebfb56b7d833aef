"""The promises of a restore about what was sent to consumers, in any number of lives."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio

from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.repartition import Repartition
from s4node.deploy.savepoint import SavepointOf
from s4node.deploy.savepoint_restore import SavepointRestore, check_readable
from s4node.errors import CheckpointError
from s4node.net.egress.outbox_rows import (
    RowKeys,
    channels_of,
    forget,
    life_of,
    number_row,
    weight_of,
)
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims
from s4node.runtime.inputs.grouper import BY_PARTITION
from s4node.runtime.outputs.channels import channel_name
from s4node.savepoints import archive
from s4node.savepoints.manifest import Upgrade
from s4node.state.job import saved_state, taken_over, task_folder
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState

TASK = "Partition 0"
CHANNEL = channel_name("done", "end")
LATER = "z"
"""A life that is later than all others."""
GUARD = JobGuard(1, BY_PARTITION, settings.HASHER.default)


def test_a_restore_counts_what_was_sent_in_all_lives(job: SavepointOf) -> None:
    send(job, "0-00", 100)
    job.take_stopped("first")
    send(job, "0-00", 110)
    for number in range(1, 6):
        assert again(job, "first") == 10 * number
        restore(job, "first")
        send(job, f"0-{number:02}", 10)
        if number == 3:
            job.take_stopped("second")
    assert again(job, "second") == 20


def test_a_task_that_has_sent_nothing_since_a_savepoint_keeps_its_numbers(job: SavepointOf) -> None:
    send(job, "0-00", 100, waiting=7)
    job.take_stopped("first")
    send(job, "0-00", 100)  # the consumer has taken all
    assert again(job, "first") == 0
    restore(job, "first", outputs_again=False)
    assert waiting(job) == {"0-00": 7}


def test_a_deployment_that_is_undone_before_it_has_sent_anything_keeps_the_numbers(
    job: SavepointOf,
) -> None:
    send(job, "0-00", 100)
    job.take_stopped("first")
    send(job, "0-00", 130, waiting=9)
    job.take_stopped("before")
    restore(job, "first")
    assert again(job, "before") == 0
    restore(job, "before")
    assert waiting(job) == {"0-00": 9}
    restore(job, "first")
    send(job, LATER, 1)
    assert again(job, "before") == 1 + 9
    restore(job, "before")
    assert waiting(job) == {new_life(job): 9}


def test_what_waited_is_the_first_of_a_new_life_if_more_was_sent_since(job: SavepointOf) -> None:
    send(job, "0-00", 100, waiting=7)
    job.take_stopped("first")
    send(job, "0-00", 130)
    assert again(job, "first") == 30 + 7
    restore(job, "first")
    first = new_life(job)
    assert waiting(job) == {first: 7}
    assert again(job, "first") == 30 + 7  # for those have no numbers yet
    send(job, first, 7 + 5)
    assert again(job, "first") == 30 + 7 + 12
    restore(job, "first")
    assert waiting(job) == {new_life(job): 7}
    assert new_life(job) > first


def test_what_waited_for_the_partitions_of_its_consumer_is_the_first_of_a_new_life(
    job: SavepointOf,
) -> None:
    send(job, "0-00", unnumbered=5)
    job.take_stopped("first")
    send(job, "0-00", 30)
    assert again(job, "first") == 30
    restore(job, "first")
    assert waiting(job) == {new_life(job): 5}


def test_where_newer_state_is_missing_the_user_says_whether_numbers_go_on(job: SavepointOf) -> None:
    send(job, "0-00", 100, waiting=7)
    job.take_stopped("first")
    for outputs_again in (False, True, False):
        shutil.rmtree(task_folder(job.folder, TASK))
        restore(job, "first", outputs_again=outputs_again)
        assert waiting(job) == {new_life(job) if outputs_again else "0-00": 7}
    shutil.rmtree(task_folder(job.folder, TASK))
    restore(job, "first")
    assert again(job, "first") == 7
    restore(job, "first")
    assert waiting(job) == {new_life(job): 7}


def test_neither_a_savepoint_nor_a_repartition_hides_that_commits_are_lost(
    job: SavepointOf,
) -> None:
    send(job, "0-00", 10)
    copy = job.folder / "copy"
    shutil.copytree(task_folder(job.folder, TASK), copy)
    send(job, "0-00", 20)
    shutil.rmtree(task_folder(job.folder, TASK))
    repartition = Repartition(job.app, job.folder, job.config, GUARD, 2)
    with pytest.raises(CheckpointError, match=r"'Partition 0' has lost commits: .* has 0 of 2"):
        repartition.run()
    shutil.move(copy, task_folder(job.folder, TASK))
    with pytest.raises(CheckpointError, match=r"'Partition 0' has lost commits: .* has 1 of 2"):
        repartition.run()
    with pytest.raises(CheckpointError, match=r"'Partition 0' has lost commits: .* has 1 of 2"):
        job.take_stopped("first")
    assert job.place.names() == []


def test_a_savepoint_of_a_deployment_that_is_imported_is_not_one_of_deployments(
    job: SavepointOf,
) -> None:
    send(job, "0-00", 10)
    taken = job.take_stopped("before-v2", upgrade=Upgrade("v1", "package", "v2", False))
    file = job.folder / "before-v2.tar"
    with job.place.opened(taken) as saved:
        archive.write(saved, taken, file)
    archive.read(job.place, job.app, file, "mine")
    found = {each.name: each.upgrade is not None for each in job.place.look()[0]}
    assert found == {"before-v2": True, "mine": False}


def test_a_savepoint_leaves_alone_what_an_import_has_brought_so_far(job: SavepointOf) -> None:
    send(job, "0-00", 10)
    with job.place.bringing(job.place.prepare("two", job.app)) as cuts:
        (cuts / "file").write_text("from elsewhere")
        job.take_stopped("one")
        assert (cuts / "file").exists()
    assert not cuts.exists()
    cuts.mkdir()  # as of a killed command
    job.take_stopped("three")
    assert not cuts.exists()


def test_an_export_that_is_cut_off_anywhere_is_named(job: SavepointOf) -> None:
    send(job, "0-00", 10)
    taken, file, cut = job.take_stopped("one"), job.folder / "one.tar", job.folder / "cut.tar"
    with job.place.opened(taken) as saved:
        archive.write(saved, taken, file)
    with tarfile.open(file) as tar:
        last = tar.getmembers()[-1]
    for end in (last.offset, last.offset + 100, last.offset_data, last.offset_data + 1):
        cut.write_bytes(file.read_bytes()[:end])
        with pytest.raises(CheckpointError, match=r"cut\.tar is not what .* or is cut off: "):
            archive.read(job.place, job.app, cut, "two")
    assert job.place.names() == ["one"]


def test_events_under_way_are_of_one_cluster(job: SavepointOf) -> None:
    send(job, "0-00", 100, waiting=7)
    manifest = job.take_stopped("first")
    with job.place.opened(manifest) as saved:
        trio.run(check_readable, None, job.config, manifest, saved)
        other = Config.from_values({"s4.cluster.name": "other"})
        with pytest.raises(CheckpointError, match="tasks of the cluster 'default' have sent"):
            trio.run(check_readable, None, other, manifest, saved)


def test_a_damaged_decision_of_a_repartition_is_named(job: SavepointOf) -> None:
    send(job, "0-00", 10)
    place = job.folder / ".repartition" / "decided.json"
    place.parent.mkdir()
    place.write_text('{"job": {}, "tas')
    with pytest.raises(CheckpointError, match=r"decided.json, .*, is damaged: "):
        Repartition(job.app, job.folder, job.config, GUARD, 2).run()


# -- set-up ---------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> SavepointOf:
    with closing(TaskClaims(tmp_path)) as store:
        store.admit(GUARD)
    return SavepointOf("shop", tmp_path, Config.from_values({}), GUARD, [TASK])


def send(job: SavepointOf, life: str, end: int = 0, waiting: int = 0, unnumbered: int = 0) -> None:
    """Have the task commit that it has sent events below ``end`` in this life of its channel, of
    which the last ``waiting`` wait; others may have no numbers, as the consumer is not there."""
    with (
        closing(TaskClaims(job.folder)) as store,
        taken_over(job.folder, store, TASK, None) as (claim, state),
    ):
        keys = RowKeys(CHANNEL)
        forget(state.changes, state.rows(OUTBOX))
        state.changes.put(keys.life, life.encode())
        if end:
            state.changes.put(keys.next_number(0), number_row(end))
        if unnumbered:
            own = wire.Data("done", 0, "", 0, unnumbered, (wire.Section(0, unnumbered, 0),))
            state.changes.put(keys.own_row(0), wire.encode_frame(own))
        if waiting:
            name = f"{wire.TASK}default/shop/{TASK}#{life}"
            data = wire.Data(
                "done", 0, name, end - waiting, waiting, (wire.Section(0, waiting, 0),)
            )
            state.changes.put(keys.frame(0, end - waiting, end), wire.encode_frame(data))
        number = state.last[1] + 1
        store.renew(claim, 0, number)
        commit(state)
        store.acknowledge(claim, number)


def commit(state: TaskState) -> None:
    state.begin_commit({})
    state.write_commit()
    state.end_commit(written=True)


@contextmanager
def back_to(job: SavepointOf, name: str) -> Iterator[SavepointRestore]:
    manifest = job.place.manifest_of(name)
    with job.place.opened(manifest) as saved:
        yield SavepointRestore(job.app, job.folder, job.config, None, manifest, saved)


def restore(job: SavepointOf, name: str, *, outputs_again: bool = True) -> None:
    with back_to(job, name) as restored:
        restored.restore(outputs_again=outputs_again, accept_loss=True)


def again(job: SavepointOf, name: str) -> int:
    """How many events come again from a savepoint."""
    with back_to(job, name) as restored:
        return restored.since().outputs["done", "end"]


def waiting(job: SavepointOf) -> dict[str, int]:
    """The events that wait, by life."""
    with saved_state(job.folder, TASK) as state:
        assert state is not None
        channels = channels_of(state.rows(OUTBOX)).values()
        return {life_of(rows): weight_of(rows)[0] for rows in channels if weight_of(rows)[0]}


def new_life(job: SavepointOf) -> str:
    """The life of the channel, which begins with it; not one of those that tests name."""
    (life,) = waiting(job)
    assert not life.startswith("0-")
    return life
