"""The parts of a container whose tasks keep no state: nothing is claimed, read or committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import trio

from s4node import threads
from s4node.app.app import App
from s4node.app.plan import graph
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.logger import get_logger
from s4node.metrics.statistics import ReplayStatistics
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.cuts import Cuts
from s4node.runtime.commit.committer import Committer
from s4node.runtime.container import saved_sample
from s4node.runtime.container.standbys import Standbys
from s4node.runtime.inputs.binding import live_of
from s4node.runtime.inputs.job_model import JobModel
from s4node.runtime.loop.run_loop import Rest
from s4node.runtime.task.task import Task
from s4node.savepoints.manifest import StateCheck
from s4node.state.job import folder_of

log = get_logger("s4node.runtime")


class NoCommits:
    """The commits of tasks that keep no state: there are none."""

    owned: Mapping[int, Any] = MappingProxyType({})

    def commit(self, task: Task) -> bool:  # noqa: ARG002
        return False

    async def check_fences(self) -> None: ...


class FastParts:
    """Parts of ``app`` that do nothing; ``DurableParts`` say what each of them is.

    ``counts`` are the numbers of partitions of its inputs, by system and stream, and ``identities``
    their ids. ``durable`` are the streams whose producers' numbers are in commits. ``failing`` says
    why state cannot be read or written now and is tried again, by task; "" is the start. ``away``
    are the systems that cannot be reached.
    """

    keeps = False  # state

    def __init__(self, app: App, config: Config) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.identities: dict[tuple[str, str], str] = {}
        self.durable: Collection[str] = ()
        self.failing: Mapping[str, str] = {}
        self.away: set[str] = set()
        self.cuts: Cuts  # set by those who make it
        self.rest: Rest | None = None  # of the loop, to measure what commits cost
        self.committer: Committer | NoCommits = NoCommits()
        self.held: Collection[Any] = ()  # inputs that wait for room
        self.standbys: Standbys | None = None
        self.can_be_standby = False  # s4.state.standby is set, and possible
        self.state = ""  # the identity of the state here, for members
        self._app = app
        self._config = config

    @property
    def died(self) -> tuple[str, int]:
        return "", 0

    async def before(self, name: str, *, waits: bool) -> JobGuard | None:  # noqa: ARG002
        if self._app.stores:
            graph.refuse_stores(self._app)
        await self._check_left(name)
        return None

    async def _check_left(self, name: str) -> None:
        """Warn if an app that keeps no state has saved state under ``name`` with other settings.

        A forgotten setting deletes nothing on disk, but the app begins anew. Raises StateError if
        that state, as far as it is on this host, holds events back for an order by time.
        """
        app, config = self._app, self._config
        try:
            folder = folder_of(config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME], name)
            if not (folder / "tasks").is_dir():
                return
        except (ConfigError, OSError):  # an app that keeps no state needs no such folder
            return
        await threads.run_sync(saved_sample.check_unused, folder / "tasks")
        streams = ", ".join(f"s4.stream.{stream}.grade = durable" for stream in live_of(app))
        again = f"set {streams} as" if streams else "declare its inputs as"
        log.warning(
            "the app keeps no state with these settings, but has saved state with others; it "
            "begins without that state",
            app=app.name,
            folder=str(folder),
            fix=f"{again} before, or remove the folder",
        )

    async def check_saved_state(
        self, name: str, model: JobModel, before: JobGuard | None, check: StateCheck
    ) -> None: ...

    def make(self, *_: Any) -> None: ...

    async def start(self, nursery: trio.Nursery, enrolment: Enrolment | None) -> None: ...

    async def restore_tasks(
        self, tasks: Collection[Task], origin: str, epochs: Sequence[int]
    ) -> None: ...

    async def start_reading(self, tasks: Collection[Task]) -> None: ...

    def released(self) -> None: ...

    def statistics(self) -> ReplayStatistics:
        return ReplayStatistics()

    async def stop_reading(self) -> None: ...

    async def end_run(self) -> None: ...

    def check_published(self) -> None:
        """Raise S4Error if the app has ended itself, and has not published all that it wrote."""

    async def commit_ended(self, tasks: Iterable[Task]) -> None: ...

    def close(self) -> None: ...
