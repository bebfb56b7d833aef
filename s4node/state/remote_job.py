"""The copy of a job's state at a URL: which job it belongs to, its identity and its tasks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from s4node import tokens
from s4node.config import settings
from s4node.config.config import Config
from s4node.offsets.checkpoint import JobGuard
from s4node.state.remote_files import RemoteFiles
from s4node.state.remote_manifest import fences, name_of
from s4node.state.remote_task import RemoteTask


class RemoteJob:
    """The copy of the job in ``folder``, at the same place below ``url`` as on this node."""

    def __init__(self, url: str, folder: Path, *, sync: bool = False) -> None:
        self.files = RemoteFiles(url, folder, sync=sync)
        self._guards = f"{self.files.root}/jobs"
        self.url = self.files.url

    def admit(self, job: JobGuard) -> None:
        """Record this job; raises CheckpointError if the copy belongs to another job."""
        with self.files.told():
            self.files.make_folder(self._guards)
            number, before = self._last()
            if before is not None:
                job.check(
                    before,
                    f"the state at {self.url}",
                    "Or remove it, to start without any progress.",
                )
            if before is None or job.over(before) != before:
                over = job if before is None else job.over(before)
                name = name_of(number + 1, tokens.fresh(8))
                self.files.put(f"{self._guards}/{name}", msgspec.json.encode(over.to_row()))

    def job(self) -> JobGuard | None:
        """The job that last shipped here, if any."""
        with self.files.told():
            return self._last()[1]

    def _last(self) -> tuple[int, JobGuard | None]:
        """The last recorded job, and how many records there are."""
        names = sorted(name for name in self.files.names(self._guards) if fences([name]))
        if not names:
            return 0, None
        data = self.files.fs.cat_file(f"{self._guards}/{names[-1]}")
        return fences(names)[-1], JobGuard.from_row(msgspec.json.decode(data))

    def identity(self, own: str) -> str:
        """The identity of the copy; ``own`` if it has none. If that is empty, too, nothing is
        written. Two callers must take turns."""
        place = f"{self.files.root}/identity"
        with self.files.told():
            if not self.files.fs.exists(place):
                if not own:
                    return ""
                self.files.make_folder(self.files.root)
                self.files.put(place, own.encode())
            return bytes(self.files.fs.cat_file(place)).decode()

    def apps(self) -> list[str]:
        """The folder names of all apps of the cluster."""
        return self._folders(self.files.root.rpartition("/")[0])

    def tasks(self) -> list[str]:
        """The folder names of all tasks in the copy."""
        return self._folders(f"{self.files.root}/tasks")

    def _folders(self, place: str) -> list[str]:
        with self.files.told():
            return sorted(self.files.names(place))

    def task(self, name: str) -> RemoteTask:
        """The copy of one task; ``name`` is that of its folder."""
        return RemoteTask(self.files, name)


def depot_of(config: Config, folder: Path) -> RemoteJob | None:
    """The copy of the job in ``folder``, or None if its state is not shipped."""
    url, sync = config[settings.STATE_URL], config[settings.STATE_SYNC] == "full"
    return RemoteJob(url, folder, sync=sync) if url else None
