"""The pipeline of a container: its configured stages, and which of them hold which tasks.

Rules
- ``stage_configs`` has the settings of each stage.
- A stage that makes tasks wait, of a stream in a partition or of a stream to other nodes or
  clusters, is watched from when it is full until it has room or is gone. The order of processing
  does the rest.
- Settings and handlers that can have no effect are logged once, at the start: settings of streams
  that the app does not have, and handlers of PEs that nothing calls.
- A stream that feeds itself gets a spill as soon as the cycle is known, and that is logged once.
  Until then its stages are remembered. The sender of a stream to other nodes gets a spill when a
  timer has put more on it than it can hold, and that to another app when its answers say that the
  events lead back to an input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

from s4node.app.app import App
from s4node.app.plan import graph
from s4node.app.stream import InputStream, OutputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.logger import get_logger
from s4node.net.egress.spill import Spill
from s4node.net.egress.stream_types import StreamTypes
from s4node.runtime.loop.backpressure import Edges, Order
from s4node.runtime.loop.full_outputs import FullOutputs
from s4node.runtime.loop.spill_file import SpillFile
from s4node.runtime.loop.stage_configs import StageConfigs
from s4node.stages.executors import DESERIALIZER, STREAM, Executor
from s4node.stages.stage import Gauge, Overflow, Room, Stage

log = get_logger("s4node.runtime")

T = TypeVar("T")


class Holder(Protocol):
    """A stage, or another thing that tasks may have to wait for."""

    @property
    def holds(self) -> bool:
        """True while tasks have to wait."""
        ...


class Pipeline(Room):
    """The stages of ``app`` in one container.

    ``edges`` are known before it runs. ``keeps`` says that tasks keep state. The stages can obey
    their settings, which ``Container.prepare`` has checked (``StageConfigs.check_executors``).
    """

    def __init__(
        self,
        app: App,
        config: Config,
        edges: Mapping[str, Iterable[str]] | None = None,
        durable: Collection[str] = (),
        *,
        keeps: bool = False,
    ) -> None:
        self.configs = StageConfigs(app, config, durable, keeps=keeps)
        self.order = Order(Edges(edges))
        self._app = app
        self._config = config
        self.full: dict[tuple[str, Hashable], Holder] = {}  # the stages that make tasks wait
        self.full_outputs = FullOutputs(
            [name for name, each in app.streams.items() if isinstance(each, OutputStream)]
        )
        self._queues: dict[str, list[Stage]] = {}  # that may need a spill later
        self._files: list[SpillFile] = []  # of the spills
        self.overflow_of: Callable[[str, int], Overflow] | None = None  # for stages of tasks
        self.freed = False  # a stream that was held may go on
        self._logged: set[frozenset[str]] = set()
        self.deserializers = {
            name: Gauge(self.configs.settings(DESERIALIZER, name))
            for name, stream in app.streams.items()
            if not isinstance(stream, OutputStream)
        }
        self._log_cycles()
        self._log_strays()
        self._log_uncalled()

    # -- making ------------------------------------------------------------------------------

    def stages_of(self, partition: int) -> dict[str, Stage]:
        return {
            name: self.stage_of(name, STREAM, partition)
            for name, stream in self._app.streams.items()
            if not isinstance(stream, OutputStream)
        }

    def drop(self, stages: Iterable[Stage]) -> None:
        """Forget the stages of a partition, or a consumer, that has gone."""
        for stage in stages:
            self._queues[stage.settings.stream].remove(stage)

    def stage_of(self, stream: str, stage: str, partition: int | None = None) -> Stage:
        """A new stage of this name for a stream's events, of a partition or that leave us."""
        gauge = self.deserializers[stream] if stage == STREAM else None
        queue = Stage(self.configs.settings(stage, stream), partition, deserializer=gauge)
        self._queues.setdefault(stream, []).append(queue)
        if self.order.edges.group(stream):
            self.spill(stream, queue)
        return queue

    def limits(self, stages: dict[str, Stage]) -> dict[str, tuple[Executor, ...]]:
        """The executors that limit how fast events leave these stages, by stream."""
        found: dict[str, tuple[Executor, ...]] = {}
        for name, stage in stages.items():
            executors = [stage.executor]
            if isinstance(self._app.streams[name], InputStream):
                executors.append(self.deserializers[name].executor)
            limiting = tuple(e for e in executors if type(e).allowance is not Executor.allowance)
            if limiting:
                found[name] = limiting
        return found

    # -- holding ------------------------------------------------------------------------------

    def learn(self, source: str, stream: str) -> None:
        if self.order.learn(source, stream):
            self.freed = True
            self._log_cycles()

    def watch(self, stream: str, place: Hashable, holder: Holder) -> None:
        if self.full.get((stream, place)) is not holder:
            self.full[stream, place] = holder  # an earlier stage may have had the place
            self.order.filled(stream, place)
            if not self.order.edges.group(stream):
                self.full_outputs.filled(stream, place)

    def check_full(self) -> bool:
        """Check the stages that were full; return True if a held stream may go on."""
        freed, self.freed = self.freed, False
        for (stream, place), holder in list(self.full.items()):
            if not holder.holds:
                del self.full[stream, place]
                freed |= self.order.emptied(stream, place)
                self.full_outputs.emptied(stream, place)
        return freed

    def stops(self, stream: str, partition: int) -> bool:
        """Return True if programs get no more credit for a stream in a partition.

        Too many of its events wait for other tasks, or for what it feeds itself over.
        """
        return stream in self.order.feeding or (stream, (partition, stream)) in self.full

    def unwatch(self, stream: str, place: Hashable) -> None:
        """Forget a stage that is gone; tasks that it held go on after the next ``check_full``."""
        if self.full.pop((stream, place), None) is not None:
            self.freed |= self.order.emptied(stream, place)
            self.full_outputs.emptied(stream, place)

    def _log_strays(self) -> None:
        """Log settings of streams that the app does not have: another app's, or misspelt."""
        strays = {
            pattern.name.replace("<stream>", stream): stream
            for pattern in settings.STREAM_PATTERNS
            for stream in self._config.matching(pattern)
            if stream not in self._app.streams
        }
        if not strays:
            return
        from difflib import get_close_matches  # slow to load, and only mistakes use it

        named = []
        for key, stream in strays.items():
            near = get_close_matches(stream, self._app.streams, 1)
            meant = f": did you mean {near[0]}?" if near else ""
            named.append(f"{key} ({self._config.origin(key)}{meant})")
        log.warning(
            "settings of streams that the app does not have are ignored",
            app=self._app.name,
            settings=", ".join(named),
            streams=", ".join(self._app.streams),
        )

    def _log_uncalled(self) -> None:
        """Log handlers that are never called though they look as if they were."""
        for pe, handler, missing in graph.uncalled(self._app):
            log.warning(
                "a handler is never called: on_init does not set when to call it",
                app=self._app.name,
                pe=pe,
                handler=handler,
                missing=missing,
            )

    def _log_cycles(self) -> None:
        for group in self.order.edges.groups:
            if group in self._logged:
                continue
            self._logged.add(group)
            path = " -> ".join(self.order.edges.cycle(min(group)))
            log.warning(
                "streams feed themselves; events beyond the size of their stages wait on disk",
                path=path,
                app=self._app.name,
            )
            for stream in group:
                for queue in self._queues.get(stream, ()):
                    self.spill(stream, queue)

    def spill(self, stream: str, queue: Stage) -> None:
        """Let events that a stage cannot hold wait on disk, unless its executor drops them."""
        if queue.overflow is not None or queue.executor.waits_from > 1:
            return
        if self.overflow_of is not None and queue.partition is not None:
            queue.overflow = self.overflow_of(stream, queue.partition)
        else:
            types = StreamTypes(stream, [kind.cls for kind in self._app.streams[stream].types])
            file = SpillFile(stream)
            queue.overflow = Spill(self._app.name, types, file)
            self._files.append(file)

    def close(self) -> None:
        for file in self._files:
            file.close()
