"""What a job keeps at a URL: what it is like, so that no other goes on from it, and its tasks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from s4node.config import settings
from s4node.config.config import Config
from s4node.offsets.checkpoint import JobGuard
from s4node.state.remote_files import RemoteFiles
from s4node.state.remote_task import RemoteTask


class RemoteJob:
    """The place of the job in ``folder``, which is below the ``url`` as it is on this node."""

    def __init__(self, url: str, folder: Path) -> None:
        self._files = RemoteFiles(url, folder)
        self.url = self._files.url

    def admit(self, job: JobGuard) -> None:
        """Go on as this job; raises CheckpointError where what is there is another job's."""
        place = f"{self._files.root}/job.json"
        with self._files.told():
            self._files.fs.makedirs(self._files.root, exist_ok=True)
            before = None
            if self._files.fs.exists(place):
                before = JobGuard.of(msgspec.json.decode(self._files.fs.cat_file(place)))
                job.check(
                    before,
                    f"what is kept at {self.url}",
                    "Or remove it, to begin without any progress.",
                )
            if before is None or job.over(before) != before:
                over = job if before is None else job.over(before)
                self._files.fs.pipe_file(place, msgspec.json.encode(over.to_row()))

    def job(self) -> JobGuard | None:
        """What the job was like that last shipped here."""
        with self._files.told():
            try:
                return JobGuard.of(
                    msgspec.json.decode(self._files.fs.cat_file(f"{self._files.root}/job.json"))
                )
            except FileNotFoundError:
                return None

    def apps(self) -> list[str]:
        """The names of the folders of all apps of the cluster."""
        return self._folders(self._files.root.rpartition("/")[0])

    def tasks(self) -> list[str]:
        """The names of the folders of all tasks that are there."""
        return self._folders(f"{self._files.root}/tasks")

    def _folders(self, place: str) -> list[str]:
        with self._files.told():
            return sorted(self._files.names(place))

    def task(self, name: str) -> RemoteTask:
        """What is there of a task; ``name`` is that of its folder."""
        return RemoteTask(self._files, name)


def depot_of(config: Config, folder: Path) -> RemoteJob | None:
    """The place of the job in ``folder``, where there is one."""
    return RemoteJob(config[settings.STATE_URL], folder) if config[settings.STATE_URL] else None
