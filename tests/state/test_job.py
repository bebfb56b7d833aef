"""The folders of a job's tasks: each has its own, below that of the job."""

from __future__ import annotations

from pathlib import Path

from s4node.state.job import task_folder, task_of


def test_each_name_of_a_task_has_a_folder_of_its_own_that_leads_nowhere_else() -> None:
    names = ["a", ".a", "..a", ".", "..", "../a", "/a", "a/..", "a b", "%2ea", "Partition 0"]
    folders = [task_folder(Path("job"), name) for name in names]
    assert len(set(folders)) == len(names)
    for name, folder in zip(names, folders, strict=True):
        assert folder.parent == Path("job/tasks")
        assert folder.name not in ("", ".", "..")
        assert task_of(folder.name) == name
