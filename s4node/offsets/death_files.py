"""The files in which a task's owner leaves what the next one has to know if it dies.

Rules
- The task's folder has a file from each start to its end in order, with the ``Deaths`` before it.
  An owner that finds that of an earlier one counts one more. Names have the owner's epoch, so that
  no two owners share a file.
- A careful owner has a second file, of the event that it processes. Writing it takes one system
  call, and the file survives the process. It is emptied after the event.
- A third file has the places that ``s4 dead-letter skip`` names. The next owner skips these events,
  and removes the places that commits cover.
- The folder is on this machine, also if state is shipped to a URL: each machine counts for itself.
- Nothing is synced: a power cut may cost a count.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import StateError
from s4node.events.schema import UNREADABLE
from s4node.offsets.deaths import OWN, Deaths, EventPlace

_DEATHS, _EVENT, _SKIPPED = "deaths-", "event-", "skipped"
_EVENT_BYTES = 4096
"""The bytes that are allocated for a place, so that a full disk is an error at the start."""

_decode_deaths = msgspec.json.Decoder(Deaths).decode
_decode_place = msgspec.json.Decoder(EventPlace).decode
_decode_places = msgspec.json.Decoder(list[EventPlace]).decode


class DeathFiles:
    """The files of one owner; ``skipped`` are the events that it skips on request."""

    def __init__(
        self, folder: Path, epoch: int, deaths: Deaths, skipped: list[EventPlace], died_ms: int
    ) -> None:
        self.deaths = deaths
        self.skipped = skipped
        self.died_ms = died_ms
        """When the last owner began the event at which it died (Unix time, ms)."""
        self._folder = folder
        self._path = folder / f"{_DEATHS}{epoch}"
        self._event_path = folder / f"{_EVENT}{epoch}"
        self._event = -1  # the open file
        self._path.write_bytes(msgspec.json.encode(deaths))
        self._save_skipped()

    def well_past(self) -> None:
        """Note that this start is well past the position where it began."""
        self.deaths = self.deaths.well_past()
        with suppress(OSError):  # then a later death counts as one more
            self._path.write_bytes(msgspec.json.encode(self.deaths))

    def drop_skipped(self, places: Collection[tuple[str, int]]) -> None:
        """Forget skipped events that a commit covers, by origin and number."""
        left = [one for one in self.skipped if (one.origin, one.number) not in places]
        if len(left) < len(self.skipped):
            self.skipped = left
            with suppress(OSError):  # then the next start drops them, or skips nothing
                self._save_skipped()

    def _save_skipped(self) -> None:
        path = self._folder / _SKIPPED
        if self.skipped:
            disk.write(path, msgspec.json.encode(self.skipped))
        else:
            path.unlink(missing_ok=True)

    # -- the event of a careful owner --------------------------------------------------------

    def open_event(self) -> None:
        if self._event < 0:
            self._event = disk.private(str(self._event_path), os.O_WRONLY | os.O_CREAT)
            os.pwrite(self._event, bytes(_EVENT_BYTES), 0)

    def close_event(self) -> None:
        if self._event >= 0:
            os.close(self._event)
            self._event = -1
            self._event_path.unlink(missing_ok=True)

    def event_begins(self, place: EventPlace) -> None:
        with suppress(OSError):  # a place longer than what was allocated, on a full disk
            os.pwrite(self._event, msgspec.json.encode(place) + b"\n", 0)

    def event_ended(self) -> None:
        os.pwrite(self._event, b"\n", 0)

    def close(self) -> None:
        """Remove the files: the owner ends in order."""
        with suppress(OSError):
            self.close_event()
            self._path.unlink(missing_ok=True)


def enter(folder: Path, epoch: int, positions: Mapping[str, int]) -> DeathFiles:
    """The files of a new owner, whose task has committed ``positions``.

    Raises StateError if the folder cannot be written.
    """
    deaths, died_ms = Deaths(os.getpid()), 0
    try:
        earlier = sorted(each for each in _epochs(folder) if each < epoch)
        for one in earlier:
            before = _read_deaths(folder, one)
            if before is not None:
                at = _read_event(folder, one)
                deaths = before.following(os.getpid(), at)
                if at is not None:
                    died_ms = int((folder / f"{_EVENT}{one}").stat().st_mtime * 1000)
        skipped = [
            place
            for place in _read_skipped(folder)
            if place.origin.endswith(OWN) or place.number >= positions.get(place.origin, 0)
        ]
        files = DeathFiles(folder, epoch, deaths, skipped, died_ms)
        if deaths.careful:
            files.open_event()
        for one in earlier:
            for name in (_DEATHS, _EVENT):
                (folder / f"{name}{one}").unlink(missing_ok=True)
    except OSError as error:
        raise StateError(
            f"{folder} cannot be written: {error.strerror or error}; check its permissions, make "
            f"room on its disk, or set s4.state.folder to another one"
        ) from error
    return files


# -- for other processes --------------------------------------------------------------------------


def event_of(job: Path, pid: int) -> EventPlace | None:
    """The event at which the process ``pid`` has died, a careful owner of tasks of a job."""
    events = (at for _, deaths, at in _records(job) if deaths.pid == pid and at is not None)
    return next(events, None)


def found(job: Path) -> list[tuple[Path, EventPlace]]:
    """The events at which processes of a job have died, or that are processed carefully now, each
    with the folder of its task."""
    return [(task, at) for task, deaths, now in _records(job) for at in {now, deaths.at} if at]


def skip(task: Path, place: EventPlace) -> None:
    """Have the next owner of the task in a folder skip an event."""
    places = _read_skipped(task)
    if place not in places:
        disk.write(task / _SKIPPED, msgspec.json.encode([*places, place]))


def _records(job: Path) -> Iterator[tuple[Path, Deaths, EventPlace | None]]:
    """The folders of a job's tasks, with the deaths and the event of each owner."""
    for task in sorted((job / "tasks").glob("*")):
        for epoch in _epochs(task):
            if (deaths := _read_deaths(task, epoch)) is not None:
                yield task, deaths, _read_event(task, epoch)


def _epochs(folder: Path) -> set[int]:
    epochs = (entry.name.removeprefix(_DEATHS) for entry in folder.glob(f"{_DEATHS}*"))
    return {int(epoch) for epoch in epochs if epoch.isdigit()}


def _read_deaths(folder: Path, epoch: int) -> Deaths | None:
    try:
        return _decode_deaths((folder / f"{_DEATHS}{epoch}").read_bytes())
    except (FileNotFoundError, *UNREADABLE):
        return None


def _read_event(folder: Path, epoch: int) -> EventPlace | None:
    try:
        return _decode_place((folder / f"{_EVENT}{epoch}").read_bytes().partition(b"\n")[0])
    except (FileNotFoundError, *UNREADABLE):
        return None


def _read_skipped(folder: Path) -> list[EventPlace]:
    try:
        return _decode_places((folder / _SKIPPED).read_bytes())
    except (FileNotFoundError, *UNREADABLE):
        return []
