"""The copy of a job's state at a URL: which job it belongs to, its identity and its tasks.

Rules
- How owners append to the logs of tasks (:mod:`s4node.state.remote_log`) is recorded once, by the
  first container. A container that cannot append in this way is refused: with two ways at a time
  two owners would not notice each other.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from s4node import tokens
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import StateError
from s4node.offsets.checkpoint import JobGuard
from s4node.state.remote_files import RemoteFiles
from s4node.state.remote_log import CREATE, LOOK
from s4node.state.remote_task import RemoteTask

_RECORD = re.compile(r"([0-9]{16})-[0-9a-f]{1,64}")


class RemoteJob:
    """The copy of the job in ``folder``, at the same place below ``url`` as on this node."""

    def __init__(
        self, url: str, folder: Path, *, sync: bool = False, restore_seconds: float = 2.0
    ) -> None:
        self.files = RemoteFiles(url, folder, sync=sync)
        self._guards = f"{self.files.root}/jobs"
        self.url = self.files.url
        self._restore_seconds = restore_seconds
        self._choosing = threading.Lock()
        self._append_mode = ""

    def admit(self, job: JobGuard) -> None:
        """Record this job; raises CheckpointError if the copy belongs to another job."""
        with self.files.translate_errors():
            self.files.make_folder(self._guards)
            number, before = self._last()
            if before is not None:
                job.check(
                    before,
                    f"the state at {self.url}",
                    "Or remove it, to start without any progress.",
                )
            if before is None or job.over(before) != before:
                self._record(number + 1, job if before is None else job.over(before))

    def begin_layout(self, job: JobGuard, keep: Collection[str]) -> None:
        """Record a job with another number of partitions, whose tasks are those to ``keep``, by the
        names of their folders; owners of the others are fenced."""
        for name in set(self.tasks()).difference(keep):
            self.task(name).retire()
        with self.files.translate_errors():
            number, before = self._last()
            if job.follows(before):
                self._record(number + 1, job)

    def _record(self, number: int, job: JobGuard) -> None:
        name = f"{number:016d}-{tokens.fresh(8)}"
        self.files.put(f"{self._guards}/{name}", msgspec.json.encode(job.to_row()))

    def job(self) -> JobGuard | None:
        with self.files.translate_errors():
            return self._last()[1]

    def _last(self) -> tuple[int, JobGuard | None]:
        """The last recorded job, and how many records there are."""
        names = sorted(filter(_RECORD.fullmatch, self.files.names(self._guards)))
        if not names:
            return 0, None
        data = self.files.fs.cat_file(f"{self._guards}/{names[-1]}")
        return int(names[-1][:16]), JobGuard.from_row(msgspec.json.decode(data))

    def append_mode(self) -> str:
        """How owners append to the logs of tasks, as recorded. Raises StateError if this container
        cannot."""
        with self._choosing, self.files.translate_errors():
            if not self._append_mode:
                self._append_mode = self._recorded_append_mode()
            return self._append_mode

    def _recorded_append_mode(self) -> str:
        recorded = {CREATE, LOOK}.intersection(self.files.names(self._guards))
        can = LOOK not in recorded and self.files.can_create()
        if not recorded:
            self.files.make_folder(self._guards)
            self.files.put(f"{self._guards}/{CREATE if can else LOOK}", b"")
            recorded = {CREATE, LOOK}.intersection(self.files.names(self._guards))
        if len(recorded) > 1:
            raise StateError(
                f"{self._guards} has both {CREATE!r} and {LOOK!r}: two nodes found different ways "
                f"to append to the state of tasks. Stop the app, install the same versions of the "
                f"packages for this URL on all nodes, and remove both"
            )
        (mode,) = recorded
        if mode == CREATE and not can:
            raise StateError(
                f"the state at {self.url} is appended to with conditional writes, and this node "
                f"cannot make them there: two writers of one object both succeeded, or there is no "
                f"such request. Install the versions of fsspec and of the package for this kind of "
                f"URL that the other nodes have"
            )
        return mode

    def identity(self, own: str) -> str:
        """The identity of the copy; ``own`` if it has none. If that is empty, too, nothing is
        written. Two callers must take turns."""
        place = f"{self.files.root}/identity"
        with self.files.translate_errors():
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
        """The folder names of all tasks in the copy, also of former layouts."""
        return self._folders(f"{self.files.root}/tasks")

    def _folders(self, place: str) -> list[str]:
        with self.files.translate_errors():
            return sorted(self.files.names(place))

    def task(self, name: str) -> RemoteTask:
        return RemoteTask(self.files, name, self.append_mode, self._restore_seconds)


def remote_job_of(config: Config, folder: Path) -> RemoteJob | None:
    url, sync = config[settings.STATE_URL], config[settings.STATE_SYNC] == "full"
    seconds = config[settings.STATE_RESTORE_TIME]
    return RemoteJob(url, folder, sync=sync, restore_seconds=seconds) if url else None
